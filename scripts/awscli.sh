#!/bin/bash
# awscli.sh is the AWS CLI of sid.sh: awscli.sh path|remove.
set -euo pipefail
exec "$(dirname "$0")/sid.sh" "${1:-}" aws
