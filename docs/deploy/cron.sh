#!/bin/sh
# A night for cron, which mails what a job prints: nothing where nobody is needed.
#   MAILTO=ranking@example.com
#   15 3 * * *  /srv/gigabatch/docs/deploy/cron.sh conf/flights.yaml
# A second job while one runs ends at once with 40 and names the first, so no flock is needed around it.
set -u
cd "${GIGABATCH_HOME:-$(dirname "$0")/../..}" || exit 40 # the checkout that this script lies in
log=$(mktemp) || exit 40
trap 'rm -f "$log"' EXIT
.venv/bin/gigabatch nightly --config "$1" >"$log" 2>&1
code=$?
mkdir -p runs && cat "$log" >>"${GIGABATCH_LOG:-runs/cron.log}"
case $code in
0 | 10) ;;    # promoted, kept
130 | 143) ;; # asked to stop; the next night goes on
*)            # 20 and 30 refused, 40 failed, others: killed
    echo "gigabatch nightly --config $1: exit code $code"
    tail -n 50 "$log"
    ;;
esac
exit $code
