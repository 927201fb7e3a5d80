package ec2_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
)

// TestKeyPairs makes keys, lets ssh-keygen read them, and imports them again.
func TestKeyPairs(t *testing.T) {
	keygen, err := exec.LookPath("ssh-keygen")
	if err != nil && os.Getuid() == 0 { // as who runs all tests, for whom host.sh installs it
		t.Fatal("ssh-keygen is not installed: run scripts/host.sh packages")
	}
	if err != nil {
		t.Skip("ssh-keygen is not installed")
	}
	f := newFixture(t)
	ctx := t.Context()
	for _, typ := range []types.KeyType{types.KeyTypeRsa, types.KeyTypeEd25519} {
		t.Run(string(typ), func(t *testing.T) {
			made, err := f.client.CreateKeyPair(ctx, &sdk.CreateKeyPairInput{KeyName: aws.String("k-" + string(typ)), KeyType: typ})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "key")
			if err := os.WriteFile(file, []byte(*made.KeyMaterial), 0o600); err != nil {
				t.Fatal(err)
			}
			public, err := exec.CommandContext(ctx, keygen, "-y", "-f", file).CombinedOutput()
			if err != nil {
				t.Fatalf("ssh-keygen: %v: %s", err, public)
			}
			out, err := f.client.DescribeKeyPairs(ctx, &sdk.DescribeKeyPairsInput{KeyNames: []string{*made.KeyName}, IncludePublicKey: aws.Bool(true)})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := strings.Fields(*out.KeyPairs[0].PublicKey)[1], strings.Fields(string(public))[1]; got != want {
				t.Errorf("public key: got %s, ssh-keygen says %s", got, want)
			}
			imported, err := f.client.ImportKeyPair(ctx, &sdk.ImportKeyPairInput{KeyName: aws.String("again-" + string(typ)), PublicKeyMaterial: public})
			if err != nil {
				t.Fatal(err)
			}
			if typ == types.KeyTypeEd25519 && *imported.KeyFingerprint != *made.KeyFingerprint {
				t.Errorf("fingerprint: got %s, want %s", *imported.KeyFingerprint, *made.KeyFingerprint)
			}
			_, err = f.client.ImportKeyPair(ctx, &sdk.ImportKeyPairInput{KeyName: made.KeyName, PublicKeyMaterial: public})
			wantCode(t, err, "InvalidKeyPair.Duplicate")
			deleted, err := f.client.DeleteKeyPair(ctx, &sdk.DeleteKeyPairInput{KeyName: made.KeyName})
			if err != nil || *deleted.KeyPairId != *made.KeyPairId {
				t.Errorf("delete: got %+v, %v", deleted, err)
			}
			_, err = f.client.DescribeKeyPairs(ctx, &sdk.DescribeKeyPairsInput{KeyNames: []string{*made.KeyName}})
			wantCode(t, err, "InvalidKeyPair.NotFound")
		})
	}
	for _, bad := range []string{"", "ssh-rsa", "ssh-rsa %%%", "ssh-rsa AAAA", "ssh-dss AAAAB3NzaC1kc3M=", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAAQ=="} {
		_, err := f.client.ImportKeyPair(ctx, &sdk.ImportKeyPairInput{KeyName: aws.String("bad"), PublicKeyMaterial: []byte(bad)})
		if got := code(err); got != "InvalidKey.Format" && got != "MissingParameter" {
			t.Errorf("%q: got %v", bad, err)
		}
	}
}
