"""A2A 0.3 beside 1.0: other method names, and another form of the same messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from evoclaw.core.messages import JSON, is_array, is_object
from evoclaw.orchestrator.a2a.schemas import (
    TERMINAL_STATES,
    A2aEvent,
    A2aTask,
    A2aTaskState,
)

LEGACY_METHODS: Mapping[str, str] = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
}
"""The methods of 0.3, and those of 1.0 that replace them."""
_ROLES = {"user": "ROLE_USER", "agent": "ROLE_AGENT"}
_OLD_ROLES = {new: old for old, new in _ROLES.items()}
_STATE_PREFIX = "TASK_STATE_"


def upgraded_params(params: dict[str, JSON]) -> dict[str, JSON]:
    """The parameters of a 0.3 request in the form of 1.0; what does not fit stays as it is."""
    upgraded = dict(params)
    if is_object(message := params.get("message")):
        upgraded["message"] = _upgraded_message(message)
    if is_object(options := params.get("configuration")):
        changed = dict(options)
        changed["returnImmediately"] = changed.pop("blocking", None) is False
        if (push := changed.pop("pushNotificationConfig", None)) is not None:
            changed["taskPushNotificationConfig"] = push
        upgraded["configuration"] = changed
    return upgraded


def _upgraded_message(message: dict[str, JSON]) -> dict[str, JSON]:
    role, parts = message.get("role"), message.get("parts")
    upgraded = {**message, "role": _ROLES.get(role, role) if isinstance(role, str) else role}
    if is_array(parts):
        upgraded["parts"] = [_upgraded_part(part) for part in parts]
    return upgraded


def _upgraded_part(part: JSON) -> JSON:
    if not is_object(part) or not is_object(file := part.get("file")):
        return part
    names = {"bytes": "raw", "uri": "url", "mimeType": "mediaType", "name": "filename"}
    return {names[name]: value for name, value in file.items() if name in names}


def downgraded(event: A2aEvent | A2aTask) -> dict[str, JSON]:
    """A task or an event in the form of 0.3."""
    if isinstance(event, A2aTask):
        return _old_task(msgspec.to_builtins(event))
    if event.task is not None:
        return _old_task(msgspec.to_builtins(event.task))
    if event.status_update is not None:
        state = event.status_update.status.state
        update: dict[str, Any] = msgspec.to_builtins(event.status_update)
        final = state in TERMINAL_STATES or state is A2aTaskState.INPUT_REQUIRED
        status = _old_status(update["status"])
        return {**update, "kind": "status-update", "final": final, "status": status}
    update = msgspec.to_builtins(event.artifact_update)
    artifact = _old_artifact(update["artifact"])
    return {**update, "kind": "artifact-update", "artifact": artifact}


def _old_task(task: dict[str, Any]) -> dict[str, JSON]:
    old = {**task, "kind": "task", "status": _old_status(task["status"])}
    if "artifacts" in task:
        old["artifacts"] = [_old_artifact(artifact) for artifact in task["artifacts"]]
    if "history" in task:
        old["history"] = [_old_message(message) for message in task["history"]]
    return old


def _old_status(status: dict[str, Any]) -> dict[str, Any]:
    state = status["state"].removeprefix(_STATE_PREFIX).lower().replace("_", "-")
    message = {"message": _old_message(status["message"])} if "message" in status else {}
    return {**status, "state": state, **message}


def _old_artifact(artifact: dict[str, Any]) -> dict[str, Any]:
    return {**artifact, "parts": [_old_part(part) for part in artifact["parts"]]}


def _old_message(message: dict[str, Any]) -> dict[str, Any]:
    parts = [_old_part(part) for part in message["parts"]]
    return {**message, "kind": "message", "role": _OLD_ROLES[message["role"]], "parts": parts}


def _old_part(part: dict[str, Any]) -> dict[str, Any]:
    """Agents send texts and data only."""
    if "data" in part:
        return {"kind": "data", "data": part["data"]}
    return {"kind": "text", "text": part["text"]}
