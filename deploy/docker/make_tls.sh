#!/usr/bin/env bash
# An authority of your own, and a certificate for each container of compose.tls.yaml, for a year:
#   deploy/docker/make_tls.sh deploy/docker/tls
# What is in the folder already is kept; remove a certificate to have it renewed. Needs openssl.
set -euo pipefail
folder=${1:?name a folder for the files}
umask 077
mkdir -p "$folder"
cd "$folder"

[[ -s ca.key ]] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 3650 -subj /CN=specgate-ca -keyout ca.key -out ca.crt

for name in verifier drafter gateway; do
  [[ ! -s $name.crt ]] || continue
  openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr"
  openssl x509 -req -days 365 -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -out "$name.crt" \
    -extfile <(echo "subjectAltName=DNS:$name,DNS:localhost,IP:127.0.0.1")
  rm "$name.csr"
done

# The containers' user must read all but the authority's key.
chmod 755 .
chmod 644 ./*.crt
chown 10001 verifier.key drafter.key gateway.key 2>/dev/null || {
  chmod 644 verifier.key drafter.key gateway.key
  echo "not run as root: every user of this machine can read the three keys in $folder" >&2
}
