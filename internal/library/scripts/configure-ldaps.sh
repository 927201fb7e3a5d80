#!/bin/bash
# Takes users and groups from an LDAP directory, by way of sssd: openpcs's edition
# of the script configure-ldaps of AWS PCS.
set -euo pipefail

NAME=configure-ldaps

# include common.sh
# include role.sh

usage() {
  cat <<'HELP'
configure-ldaps --ldap-uri URI --search-base DN [--secret-arn SECRET] [--tls-cacert CERT]

  --ldap-uri     ldaps://SERVER[:PORT], or a list separated by commas
  --search-base  where users and groups are, for example dc=example,dc=com
  --secret-arn   who reads the directory; without it, anybody may. Either the ARN
                 of a secret of Secrets Manager or the path of a file that only
                 root can read, with {"bindDn": "...", "bindPassword": "..."}
  --tls-cacert   certificate of the authority that signed the server's: an
                 absolute path, or s3://BUCKET/KEY

It can run again: sssd is restarted when something changed.
HELP
}

URI='' BASE='' SECRET='' CERT=''
while [[ $# -gt 0 ]]; do
  case $1 in
    --ldap-uri) URI=$(value "$@"); shift 2 ;;
    --search-base) BASE=$(value "$@"); shift 2 ;;
    --secret-arn) SECRET=$(value "$@"); shift 2 ;;
    --tls-cacert) CERT=$(value "$@"); shift 2 ;;
    --help) usage && exit 0 ;;
    *) wrong "there is no option '$1'" ;;
  esac
done
[[ -n $URI ]] || wrong "--ldap-uri is missing"
for u in ${URI//,/ }; do
  [[ $u == ldaps://?* ]] || wrong "--ldap-uri: '$u' does not begin with ldaps://, and passwords do not go over the network in the clear"
done
[[ $BASE == *=* ]] || wrong "--search-base: '$BASE' is no name such as dc=example,dc=com"
[[ -z $SECRET || $SECRET == /* || $SECRET == arn:*:secretsmanager:* ]] || wrong "--secret-arn: '$SECRET' is neither the ARN of a secret nor an absolute path"
[[ -z $CERT || $CERT == /* || $CERT == s3://?*/?* ]] || wrong "--tls-cacert: '$CERT' is neither an absolute path nor s3://BUCKET/KEY"
plain --ldap-uri "$URI"
plain --tls-cacert "$CERT"
if [[ $BASE =~ [[:cntrl:]] ]]; then
  wrong "--search-base must be one line"
fi
as_root
need jq jq
need curl curl

bind_dn='' bind_password=''
if [[ -n $SECRET ]]; then
  if [[ $SECRET == /* ]]; then
    [[ $(stat -Lc %u:%a "$SECRET" 2>/dev/null) =~ ^0:[0-7]?[0-7]00$ ]] || fail "$SECRET must be a file of root that nobody else can read: chmod 600"
    document=$(cat "$SECRET")
  else
    identity || fail "$problem"
    answer=$(signed secretsmanager --fail-with-body -X POST -H 'Content-Type: application/x-amz-json-1.1' -H 'X-Amz-Target: secretsmanager.GetSecretValue' \
      --data "$(jq -cn --arg id "$SECRET" '{SecretId: $id}')" "$endpoint/") ||
      fail "the secret $SECRET cannot be read: $(jq -r '.message // .Message // empty' <<<"$answer" 2>/dev/null)"
    document=$(jq -r '.SecretString // empty' <<<"$answer")
  fi
  bind_dn=$(jq -r '.bindDn // empty' <<<"$document" 2>/dev/null || true)
  bind_password=$(jq -r '.bindPassword // empty' <<<"$document" 2>/dev/null || true)
  [[ -n $bind_dn && -n $bind_password ]] ||
    fail "the secret is not of the form {\"bindDn\": \"...\", \"bindPassword\": \"...\"}"
  if [[ $bind_dn$bind_password =~ [[:cntrl:]] ]]; then
    fail "bindDn and bindPassword must be one line each"
  fi
fi
if [[ $CERT == s3://* ]]; then
  identity || fail "$problem"
  umask 022
  mkdir -p /etc/sssd
  signed s3 --fail-with-body --output /etc/sssd/ldap-ca.pem.new "$endpoint/${CERT#s3://}" || fail "$CERT cannot be read: $(tr -d '\n' </etc/sssd/ldap-ca.pem.new | head -c 500)"
  mv /etc/sssd/ldap-ca.pem.new /etc/sssd/ldap-ca.pem
  CERT=/etc/sssd/ldap-ca.pem
fi
[[ -z $CERT || -r $CERT ]] || fail "$CERT is not there"

need sssd "sssd-ldap sssd-tools libnss-sss libpam-sss" "sssd-ldap sssd-tools"
umask 077
mkdir -p /etc/sssd
changed=no
if {
  printf '# Written by configure-ldaps.\n[sssd]\nservices = nss, pam\ndomains = ldap\n\n[domain/ldap]\n'
  printf 'id_provider = ldap\nauth_provider = ldap\ncache_credentials = true\n'
  printf 'ldap_uri = %s\nldap_search_base = %s\nldap_tls_reqcert = demand\n' "$URI" "$BASE"
  [[ -z $CERT ]] || printf 'ldap_tls_cacert = %s\n' "$CERT"
  [[ -z $bind_dn ]] || printf 'ldap_default_bind_dn = %s\nldap_default_authtok_type = password\nldap_default_authtok = %s\n' "$bind_dn" "$bind_password"
} | put /etc/sssd/sssd.conf 600; then
  changed=yes
fi
if command -v pam-auth-update >/dev/null; then
  DEBIAN_FRONTEND=noninteractive pam-auth-update --enable sss mkhomedir
elif command -v authselect >/dev/null; then
  authselect select sssd with-mkhomedir --force >/dev/null
fi
systemctl enable sssd >/dev/null
if [[ $changed == yes ]]; then
  systemctl restart sssd
elif ! systemctl is-active --quiet sssd; then
  systemctl start sssd
fi
say "users and groups come from $URI"
