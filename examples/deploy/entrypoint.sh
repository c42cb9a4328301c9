#!/bin/sh
# Copy the key that all orchestrators share from its secret, then execute the command.
# EvoClaw refuses a key that others can read, and mounted secrets often are readable by others.
set -eu
umask 077
key="${SECRETS:-/run/secrets}/orchestrator-key"
if [ -e "$key" ]; then
    install -m 600 "$key" "$EVOCLAW_HOME/orchestrator.key"
fi
exec "$@"
