# Requests to AWS's services with the credentials of the instance's role.

boot='' region='' endpoint='' keys='' problem=''

# metadata PATH [CURL_OPTION...]: what the metadata service has. It returns 2 if
# it has no such thing, and 1 if it does not answer.
metadata() {
  local path=$1 answer
  shift
  answer=$(curl -s --connect-timeout 3 --max-time 10 -w '\n%{http_code}' "$@" "http://169.254.169.254$path") || return 1
  case ${answer##*$'\n'} in
    200) printf '%s' "${answer%$'\n'*}" ;;
    404) return 2 ;;
    *) return 1 ;;
  esac
}

# identity: learn what openpcs says of the instance (boot), region, endpoint and
# the keys of the role. It returns as metadata does, and leaves what is wrong in
# problem.
identity() {
  local token role session
  problem="the metadata service of openpcs does not answer"
  boot=$(metadata /openpcs/v1/bootstrap) || return
  token=$(metadata /latest/api/token -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60') || return
  session="X-aws-ec2-metadata-token: $token"
  problem="this instance has no role, whose credentials are needed: name an instance profile in its group"
  role=$(metadata /latest/meta-data/iam/security-credentials/ -H "$session") || return
  problem="the credentials of the role $role cannot be had"
  keys=$(metadata "/latest/meta-data/iam/security-credentials/$role" -H "$session") || return
  keys=$(jq -r '"user = \"\(.AccessKeyId):\(.SecretAccessKey)\"\nheader = \"X-Amz-Security-Token: \(.Token)\""' <<<"$keys") || return 1
  region=$(jq -r .region <<<"$boot") || return 1
  endpoint=$(jq -r .endpoint <<<"$boot") || return 1
}

# signed SERVICE CURL_OPTION...: curl, signed. The keys go by standard input, as
# everybody can see the arguments of a process.
signed() {
  local service=$1
  shift
  curl -sS --connect-timeout 5 --max-time 60 --config - --aws-sigv4 "aws:amz:$region:$service" "$@" <<<"$keys"
}
