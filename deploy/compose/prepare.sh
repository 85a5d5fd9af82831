#!/bin/sh
# Make the secrets of compose.yaml, each readable by the user of its container alone. Those that exist stay.
set -eu

usage() {
    cat <<'END'
Usage: sudo sh prepare.sh [DIRECTORY]

Makes in DIRECTORY (default: secrets, beside this script):
  replication.secret          what brokers and name servers prove to each other
  console.crt, console.key    a certificate of the console for localhost, signed by itself, for two years
  grafana.password            of Grafana's user admin

It needs openssl, and root to give the files to the users of the containers (10001 and 472).
END
}

case ${1:-} in
    -h | --help)
        usage
        exit 0
        ;;
    -*)
        usage >&2
        exit 2
        ;;
esac
directory=${1:-$(dirname "$0")/secrets}
command -v openssl >/dev/null || {
    echo "prepare.sh: openssl is not installed" >&2
    exit 1
}
[ "$(id -u)" -eq 0 ] || {
    echo "prepare.sh: run it with sudo: the files are given to the users of the containers" >&2
    exit 1
}
umask 077
mkdir -p "$directory"
cd "$directory"

# One of these files is complete or absent, whatever happens.
keep() {
    chown "$2" "$1.new"
    chmod 0400 "$1.new"
    mv "$1.new" "$1"
    echo "made $1"
}

if [ ! -e replication.secret ]; then
    openssl rand -hex 32 >replication.secret.new
    keep replication.secret 10001:10001
fi
if [ ! -e console.crt ] || [ ! -e console.key ]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 730 -subj /CN=localhost \
        -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout console.key.new -out console.crt.new 2>/dev/null
    keep console.key 10001:10001
    keep console.crt 10001:10001
fi
if [ ! -e grafana.password ]; then
    openssl rand -base64 18 >grafana.password.new
    keep grafana.password 472:0
fi
