# What all scripts of the library share.

say() { printf '%s: %s\n' "$NAME" "$*"; }

fail() {
  printf '%s: %s\n' "$NAME" "$*" >&2
  exit 1
}

# Exit code 2 is a wrong use: nothing was touched.
wrong() {
  printf '%s: %s\nRun it with --help for its options.\n' "$NAME" "$*" >&2
  exit 2
}

# value OPTION [VALUE]: the value of an option, which must be there.
value() {
  [[ $# -ge 2 && -n $2 ]] || wrong "$1 needs a value"
  printf '%s' "$2"
}

# plain OPTION VALUE: what goes into fstab and the like has no blanks, quotes or
# control characters.
plain() {
  local unwanted='[[:space:][:cntrl:]"'\''\\#]'
  if [[ $2 =~ $unwanted ]]; then
    wrong "$1: '$2' must be without blanks, quotes, backslashes and #"
  fi
}

as_root() {
  [[ $(id -u) == 0 ]] || fail "must run as root, as lifecycle actions do"
}

in_container() { systemd-detect-virt --quiet --container 2>/dev/null; }

# need PROGRAM PACKAGE_OF_DEBIAN [PACKAGE_OF_RED_HAT]: install what is missing.
need() {
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null && return
  say "installing $2 for $1"
  if command -v apt-get >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update || fail "cannot install $2: the package lists cannot be fetched; put the package into the image"
    # shellcheck disable=SC2086 # a list of packages
    apt-get -qq install --no-install-recommends $2 >/dev/null || fail "cannot install $2: put the package into the image"
  elif command -v dnf >/dev/null; then
    # shellcheck disable=SC2086 # as above
    dnf -q -y install ${3:-$2} || fail "cannot install ${3:-$2}: put the package into the image"
  else
    fail "needs $1, and knows no way to install it here: put it into the image"
  fi
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || fail "installed $2, and $1 is still not there"
}

# put FILE MODE: write standard input to a file as a whole, unless that is what
# it has. It reports by its exit code whether something changed.
put() {
  local fresh
  fresh=$(mktemp "$1.XXXXXX") || fail "cannot write $1"
  cat >"$fresh"
  chmod "$2" "$fresh"
  if cmp -s "$fresh" "$1" && [[ $(stat -c %a "$1") == "$(stat -c %a "$fresh")" ]]; then
    rm -f "$fresh"
    return 1
  fi
  mv "$fresh" "$1"
}

# mount_at SOURCE TYPE OPTIONS DIR: mount, and again at each boot.
mount_at() {
  local source=$1 type=$2 options=$3 dir=$4 there now
  now=$(findmnt --noheadings --raw --output SOURCE,FSROOT --mountpoint "$dir" || true)
  there=$(awk -v dir="$dir" '$1 !~ /^#/ && $2 == dir {print $1; exit}' /etc/fstab 2>/dev/null || true)
  if [[ -n $there && $there != "$source" ]]; then
    fail "$dir is the place of $there in /etc/fstab: choose another --mount-point, or remove that line"
  fi
  if [[ -n $now && -z $there ]]; then
    fail "$dir is a mount point of ${now%% *} already: choose another --mount-point"
  fi
  mkdir -p "$dir"
  {
    [[ ! -f /etc/fstab ]] || awk -v dir="$dir" '$1 ~ /^#/ || $2 != dir' /etc/fstab
    printf '%s %s %s %s 0 0\n' "$source" "$dir" "$type" "$options"
  } | put /etc/fstab 644 || true
  if [[ -n $now ]]; then
    say "$source is mounted at $dir already"
    return
  fi
  if ! mount "$dir"; then
    # So that a boot does not wait for it.
    awk -v dir="$dir" '$1 ~ /^#/ || $2 != dir' /etc/fstab | put /etc/fstab 644 || true
    if in_container && [[ $type != none ]]; then
      fail "cannot mount $source: the kernel does not let containers mount $type. Mount it on the host, or use a folder of the cluster's shared /home instead: --help tells how"
    fi
    fail "cannot mount $source at $dir: see what mount said above"
  fi
  say "mounted $source at $dir"
}

# nfs ID OPTIONS DIR: mount what an id stands for.
nfs() {
  local id=$1 options=$2 dir=$3 table=/etc/openpcs/file-systems target option
  target=$id
  if [[ $id == fs-* && $id != *:* ]]; then
    target=$(awk -v id="$id" '$1 == id {print $2; exit}' "$table" 2>/dev/null || true)
    [[ -n $target ]] || fail "$id is a file system of EFS, which is not here: name SERVER:/EXPORT or a folder instead, or say in $table what it stands for, in a line '$id SERVER:/EXPORT'"
    plain "$table" "$target"
  fi
  for option in ${options//,/ }; do
    case $option in
      tls | iam | accesspoint=* | az=*) wrong "--options: $option is of the mount helper of EFS; for encryption NFS has xprtsec=tls and sec=krb5p" ;;
    esac
  done
  if [[ $target == /* ]]; then
    [[ -z $options ]] || wrong "--options: a folder of this machine takes none"
    mkdir -p "$target"
    mount_at "$target" none bind,nofail "$dir"
    return
  fi
  [[ $target == *:/* ]] || target=$target:/
  need mount.nfs nfs-common nfs-utils
  mount_at "$target" nfs "nfsvers=4,hard,timeo=600,retrans=2,noresvport,_netdev,nofail${options:+,$options}" "$dir"
}
