#!/bin/bash
# Keeps home directories on an NFS server: openpcs's edition of the script
# configure-efs-homes of AWS PCS.
set -euo pipefail

NAME=configure-efs-homes

# include common.sh

usage() {
  cat <<'HELP'
configure-efs-homes --efs-id WHAT [--home-base DIR] [--options LIST]

  --efs-id     what has the home directories: SERVER:/EXPORT, a folder, or an id
               fs-... as with mount-efs
  --home-base  where they are to be (/home)
  --options    further options of NFS, separated by commas

New users get their home directory below DIR, and who logs in for the first time
has it made. It can run again: what is there stays.
HELP
}

ID='' BASE=/home OPTIONS=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --efs-id) ID=$(value "$@"); shift 2 ;;
    --home-base) BASE=$(value "$@"); shift 2 ;;
    --options) OPTIONS=$(value "$@"); shift 2 ;;
    --help) usage && exit 0 ;;
    *) wrong "there is no option '$1'" ;;
  esac
done
[[ -n $ID ]] || wrong "--efs-id is missing"
[[ $BASE == /?* ]] || wrong "--home-base must be an absolute path, not '$BASE'"
plain --efs-id "$ID"
plain --home-base "$BASE"
plain --options "$OPTIONS"
BASE=${BASE%/}
as_root
if [[ $ID == "$BASE" ]]; then
  say "the home directories are in $BASE already"
else
  nfs "$ID" "$OPTIONS" "$BASE"
fi

{
  [[ ! -f /etc/default/useradd ]] || grep -v '^HOME=' /etc/default/useradd || true
  printf 'HOME=%s\n' "$BASE"
} | put /etc/default/useradd 644 || true
if command -v pam-auth-update >/dev/null; then
  DEBIAN_FRONTEND=noninteractive pam-auth-update --enable mkhomedir
elif command -v authselect >/dev/null; then
  need oddjobd oddjob-mkhomedir
  authselect enable-feature with-mkhomedir
  systemctl enable --now oddjobd
else
  fail "knows neither pam-auth-update nor authselect here: enable pam_mkhomedir in the image"
fi
say "home directories are made in $BASE"
