#!/bin/sh
# Take the key that all orchestrators share from its secret, then become what was asked for.
# It is copied because a key that others may read is refused, and mounted secrets often can be read.
set -eu
umask 077
key="${SECRETS:-/run/secrets}/orchestrator-key"
if [ -e "$key" ]; then
    install -m 600 "$key" "$EVOCLAW_HOME/orchestrator.key"
fi
exec "$@"
