#!/bin/bash
# Ships the logs of a node, so that they outlive it: openpcs's edition of the
# script configure-cloudwatch-logs of AWS PCS. It goes to a bucket of S3.
set -euo pipefail

NAME=configure-cloudwatch-logs

# include common.sh
# include role.sh

usage() {
  cat <<'HELP'
configure-cloudwatch-logs --s3-uri s3://BUCKET[/PREFIX] [--interval SECONDS] [--once]

  --s3-uri          where the logs go. The role of the node must be allowed
                    s3:PutObject there
  --interval        time between two looks at the logs, 10 to 86400 (60)
  --once            copy what is new now, and install nothing
  --log-group-name  is refused: openpcs has no CloudWatch Logs today

It copies /var/log/amazon/pcs/bootstrap.log, all of
/var/log/amazon/pcs/lifecycle/actions and /var/log/slurm/slurmd.log to
PREFIX/CLUSTER_ID/NODE/INSTANCE_ID/, each below its path: now, at every interval,
and when the instance shuts down. What did not change is not sent again, and
what changed is sent whole. If S3 does not answer, the boot goes on, and it is
tried again at the next interval. `journalctl -u openpcs-ship-logs` tells of it.
It can run again: the last --s3-uri and --interval count.
HELP
}

TO='' INTERVAL=60 ONCE=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --s3-uri) TO=$(value "$@"); shift 2 ;;
    --interval) INTERVAL=$(value "$@"); shift 2 ;;
    --once) ONCE=yes; shift ;;
    --log-group-name) wrong "--log-group-name: openpcs has no CloudWatch Logs today; let the logs go to a bucket instead, with --s3-uri s3://BUCKET/PREFIX" ;;
    --help) usage && exit 0 ;;
    *) wrong "there is no option '$1'" ;;
  esac
done
[[ -n $TO ]] || wrong "--s3-uri is missing: s3://BUCKET/PREFIX, as openpcs has no CloudWatch Logs today"
# Nothing that a shell, systemd or a path would take for something else.
[[ $TO =~ ^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=+@:,-]+)*/?$ && ! $TO =~ /\.\.?(/|$) ]] ||
  wrong "--s3-uri: '$TO' must be s3://BUCKET/PREFIX, where the parts of the prefix have letters, digits and ._=+@:,- and none is . or .."
TO=${TO%/}
if ! [[ $INTERVAL =~ ^[1-9][0-9]{1,4}$ ]] || ((INTERVAL > 86400)); then
  wrong "--interval must be 10 to 86400 seconds, not '$INTERVAL'"
fi
as_root
need jq jq
need curl curl

STATE=/var/lib/openpcs-ship-logs
PROGRAM=/usr/local/sbin/openpcs-ship-logs
UNITS=/etc/systemd/system
registered=/etc/amazon/pcs/register_node_group_instance.json

# files: the logs there are. slurmd's comes last, as it is the one that can be
# too large for the time that a request has.
files() {
  local path
  for path in /var/log/amazon/pcs/bootstrap.log /var/log/amazon/pcs/lifecycle/actions /var/log/slurm/slurmd.log; do
    [[ ! -e $path ]] || find "$path" -type f | sort
  done
}

# send FILE URL: it returns 1 if S3 does not answer, 2 if it refuses, and leaves
# what is wrong in problem.
send() {
  local answer
  problem="S3 does not answer at $endpoint"
  answer=$(signed s3 -w '\n%{http_code}' -H "X-Amz-Content-Sha256: $(sha256sum "$1" | cut -d ' ' -f 1)" \
    -H 'Content-Type: text/plain; charset=utf-8' --upload-file "$1" "$2") || return 1
  problem=$(sed -n 's:.*<Code>\(.*\)</Code>.*<Message>\(.*\)</Message>.*:\1\: \2:p' <<<"${answer//$'\n'/ }")
  problem="S3 says: ${problem:-${answer##*$'\n'}}"
  case ${answer##*$'\n'} in
    200) problem='' ;;
    429 | 5??) return 1 ;;
    *) return 2 ;;
  esac
}

# ship: copy what changed since it was last copied, and leave in count how many
# that were. It returns as send does.
count=0
ship() {
  local place path stamp key bad=0 copy=$STATE/copy known=$STATE/shipped
  identity || return
  problem="this instance is not registered with a cluster yet"
  [[ -r $registered ]] || return 1
  # Asked for each time: an image that was made of this instance may run as another.
  place=${TO#s3://}/$(jq -r .clusterId <<<"$boot")/$(jq -r .nodeID "$registered")/$(jq -r .instanceId <<<"$boot")
  touch "$known"
  : >"$known.new"
  while IFS= read -r path; do
    # Taken before the copy: what is written meanwhile is seen the next time.
    stamp=$(stat -c '%i %s %.9Y' "$path" 2>/dev/null) || continue # rotated away
    key=$(jq -rn --arg key "$place$path" '$key | split("/") | map(@uri) | join("/")')
    if ! grep -Fxq -- "$stamp $key" "$known"; then
      # A log may grow while it is sent; its copy does not.
      if ! cp "$path" "$copy"; then
        problem="cannot copy $path to $STATE"
        bad=1
        break
      fi
      send "$copy" "$endpoint/$key" || {
        bad=$?
        break
      }
      count=$((count + 1))
    fi
    printf '%s\n' "$stamp $key" >>"$known.new"
  done < <(files)
  rm -f "$copy"
  # What was not looked at any more is no less shipped.
  ((bad == 0)) || sort -u "$known" "$known.new" -o "$known.new"
  mv "$known.new" "$known"
  return "$bad"
}

umask 077
mkdir -p "$STATE"
exec 9>"$STATE/lock"
flock 9
status=0
ship || status=$?
if [[ $ONCE == yes ]]; then
  ((status == 0)) || fail "what is new in the logs is not in $TO: $problem"
  ((count == 0)) || say "shipped $count logs to $TO"
  exit 0
fi
((status != 2)) || fail "the logs cannot go to $TO: $problem"

[[ -f ${BASH_SOURCE[0]:-} ]] || fail "installs a copy of itself, and so must be run from a file"
put "$PROGRAM" 755 <"${BASH_SOURCE[0]}" || true
changed=no
put "$UNITS/openpcs-ship-logs.service" 644 <<UNIT && changed=yes
# Written by $NAME.
[Unit]
Description=Ship new logs to $TO

[Service]
Type=oneshot
ExecStart=$PROGRAM --once --s3-uri $TO
TimeoutStartSec=10min
UNIT
put "$UNITS/openpcs-ship-logs.timer" 644 <<UNIT && changed=yes
# Written by $NAME.
[Unit]
Description=Look for new logs to ship

[Timer]
# Soon after the boot, and after this script, whose own log then has its end.
OnActiveSec=5s
OnUnitInactiveSec=${INTERVAL}s
AccuracySec=1s

[Install]
WantedBy=timers.target
UNIT
# What is started before others is stopped after them: their last lines are
# shipped too.
put "$UNITS/openpcs-ship-logs-last.service" 644 <<UNIT && changed=yes
# Written by $NAME.
[Unit]
Description=Ship the last logs of a boot to $TO
After=network.target
Before=openpcs-agent.service slurmd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStop=$PROGRAM --once --s3-uri $TO
# A reboot is forced after 10 s.
TimeoutStopSec=8s

[Install]
WantedBy=multi-user.target
UNIT
[[ $changed == no ]] || systemctl daemon-reload
systemctl enable --quiet openpcs-ship-logs.timer openpcs-ship-logs-last.service
systemctl start openpcs-ship-logs-last.service
systemctl restart openpcs-ship-logs.timer
if ((status == 0)); then
  say "shipped $count logs to $TO, and looks for new ones every $INTERVAL s"
else
  say "nothing is shipped yet: $problem. It is tried again every $INTERVAL s"
fi
