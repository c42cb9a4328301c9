#!/bin/sh
# Create the secrets of compose.yaml in ./state: passwords, the orchestrators' key, the broker's
# accounts and its certificate. Run it once; it refuses to change an existing ./state.
#
#   ./prepare.sh [HOST-NAME-OR-ADDRESS-OF-THE-BROKER …]    # by which edges reach the broker
#
# It needs openssl and a Python with evoclaw (set PYTHON=… to choose one).
set -eu
umask 077
cd "$(dirname "$0")"
python="${PYTHON:-python3}"
state="${STATE:-state}"
if [ -e "$state" ]; then
    echo "$state is there already; move or delete it to start again" >&2
    exit 2
fi
mkdir -p "$state/secrets" "$state/certs" "$state/broker" "$state/one" "$state/two"

openssl rand -hex 24 > "$state/secrets/store-password"
# 32 bytes as base64url, without padding.
openssl rand -base64 32 | tr '+/' '-_' | tr -d '=\n' > "$state/secrets/orchestrator-key"

"$python" accounts.py add "$state/accounts" orchestrator --role orchestrator
cp "$state/accounts/passwords/orchestrator" "$state/secrets/broker-password"
"$python" accounts.py mosquitto "$state/accounts" > "$state/broker/dynamic-security.json"

# A private CA, and the broker's certificate. Replace both by your own if you can.
names="DNS:broker,DNS:localhost,IP:127.0.0.1"
for name in "$@"; do
    case "$name" in
        *[!0-9.]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 \
    -subj "/CN=EvoClaw broker authority" -addext "keyUsage=critical,keyCertSign,cRLSign" \
    -keyout "$state/certs/ca-key.pem" -out "$state/secrets/broker-ca" 2> /dev/null
openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=broker" \
    -keyout "$state/certs/server-key.pem" -out "$state/certs/server.csr" 2> /dev/null
printf 'subjectAltName=%s\nkeyUsage=critical,digitalSignature\nauthorityKeyIdentifier=keyid\n' \
    "$names" > "$state/certs/extensions"
openssl x509 -req -days 825 -in "$state/certs/server.csr" -extfile "$state/certs/extensions" \
    -CA "$state/secrets/broker-ca" -CAkey "$state/certs/ca-key.pem" \
    -set_serial "0x$(openssl rand -hex 16)" -out "$state/certs/server.pem" 2> /dev/null
# Needed again only to sign another certificate: store it elsewhere.
mv "$state/certs/ca-key.pem" "$state/ca-key.pem"
rm -f "$state/certs/server.csr" "$state/certs/extensions"
