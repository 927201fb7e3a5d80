package fleet

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// PrivateDNS returns EC2's host name for a private IPv4 address in a region.
func PrivateDNS(address, region string) string {
	return "ip-" + strings.ReplaceAll(address, ".", "-") + "." + PrivateDomain(region)
}

// PrivateDomain returns the domain of private host names in a region.
func PrivateDomain(region string) string {
	if region == "us-east-1" {
		return "ec2.internal"
	}
	return region + ".compute.internal"
}

// NewEC2ID returns a fresh id such as i-0123456789abcdef0: the prefix and 17
// hexadecimal digits, the first of them 0 as EC2's are.
func NewEC2ID(prefix string) string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return prefix + "-0" + hex.EncodeToString(b[:])
}

// NewPCSID returns a fresh id such as pcs_abc1234567: ten lower-case
// alphanumerics after the prefix.
func NewPCSID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	var b [10]byte
	_, _ = rand.Read(b[:])
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return "pcs_" + string(b[:])
}
