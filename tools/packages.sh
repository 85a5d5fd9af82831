#!/bin/sh
# Check or install the packages of the system that tests need, as .ci/packages lists them.
set -eu
cd "$(dirname "$0")/.."
list=.ci/packages

usage() {
    cat <<'END'
Usage: sh tools/packages.sh check|install [TARGET...]

  check     print the packages that are missing for these make targets; exit status 1 if any is
  install   install those with apt-get, as root or with sudo; without TARGET for all targets

The list is .ci/packages.
END
}

# Print the missing packages for the targets, one a line; without targets for all.
missing() {
    grep -v '^#' "$list" | while read -r package targets command; do
        if [ $# -gt 0 ]; then
            wanted=
            for target in "$@"; do
                case ",$targets," in *",$target,"*) wanted=yes ;; esac
            done
            [ -n "$wanted" ] || continue
        fi
        sh -c "$command" </dev/null >/dev/null 2>&1 || echo "$package"
    done
}

known() {
    for target in "$@"; do
        grep -v '^#' "$list" | awk '{ print $2 }' | tr , '\n' | grep -qx -e "$target" || {
            echo "tools/packages.sh: no package of $list is for '$target'" >&2
            exit 2
        }
    done
}

action=${1:-}
[ $# -eq 0 ] || shift
case $action in
    check)
        known "$@"
        found=$(missing "$@" | paste -s -d ' ' -)
        [ -z "$found" ] || {
            echo "make $*: not installed: $found" >&2
            echo "Install with \`make packages\` (Debian, Ubuntu), or: apt-get install --no-install-recommends $found" >&2
            exit 1
        }
        ;;
    install)
        known "$@"
        found=$(missing "$@" | paste -s -d ' ' -)
        [ -n "$found" ] || exit 0
        command -v apt-get >/dev/null || {
            echo "tools/packages.sh: no apt-get here; install what these packages of Debian have: $found" >&2
            exit 1
        }
        root=
        [ "$(id -u)" -eq 0 ] || root=sudo
        echo "installing $found"
        $root apt-get -qq update
        # shellcheck disable=SC2086  # one word for each package
        $root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $found >/dev/null
        left=$(missing "$@" | paste -s -d ' ' -)
        [ -z "$left" ] || {
            echo "tools/packages.sh: installed, and yet not found: $left" >&2
            exit 1
        }
        ;;
    -h | --help) usage ;;
    *)
        usage >&2
        exit 2
        ;;
esac
