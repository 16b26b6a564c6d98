#!/bin/sh
# Stands in for `python3` in the tests. Reached through a link; beside the link are:
#   store/NAME-*.whl   what `-m pip download` serves
#   fail               if there, printed on stderr by a download, which then fails
#   calls              a line per download, written here
here=$(dirname "$0")
[ "$1 $2" = "-m pip" ] || exit 3
shift 2
case $1 in
--version) echo "pip 0 (fake)"; exit 0 ;;
download) ;;
*) exit 4 ;;
esac
while [ $# -gt 1 ]; do
    [ "$1" = --dest ] && dest=$2
    shift
done
echo "$1" >>"$here/calls"
if [ -f "$here/fail" ]; then
    cat "$here/fail" >&2
    exit 1
fi
name=$(echo "${1%%==*}" | tr '.-' '__')
for wheel in "$here"/store/"$name"-*.whl; do
    [ -f "$wheel" ] || { echo "ERROR: No matching distribution found for $1" >&2; exit 1; }
    echo "  Downloading $(basename "$wheel") (1.5 kB)"
    # In two steps, as a download that grows.
    cp "$wheel" "$TMPDIR/growing"
    sleep 0.3
    mv "$TMPDIR/growing" "$dest/$(basename "$wheel")"
done
