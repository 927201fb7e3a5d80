package awsapi_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

func TestRootKeyIsKept(t *testing.T) {
	w := newWorld(t)
	again := &awsapi.Keys{Store: w.keys.Store, Account: account}
	key, err := again.EnsureRoot(t.Context())
	if err != nil || key.ID != w.root.ID || key.Secret != w.root.Secret {
		t.Errorf("got %+v, %v, want %+v", key, err, w.root)
	}
	if len(key.ID) != 20 || key.ID[:4] != "AKIA" || len(key.Secret) != 40 {
		t.Errorf("key has an odd shape: %+v", key)
	}
}

func TestSessionKeys(t *testing.T) {
	w := newWorld(t)
	ctx := t.Context()
	issue := func(instance string) awsapi.Key {
		t.Helper()
		k, err := w.keys.IssueSession(ctx, awsapi.Caller{InstanceID: instance, ARN: "arn:" + instance}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	one, two := issue("i-1"), issue("i-2")
	if len(one.ID) != 20 || one.ID[:4] != "ASIA" || one.Token == "" || one.Token == two.Token {
		t.Errorf("key has an odd shape: %+v", one)
	}
	if err := w.keys.Revoke(ctx, "i-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keys.FindKey(ctx, one.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("revoked key: got %v", err)
	}
	// Another process finds what is left, with its caller.
	other := &awsapi.Keys{Store: w.keys.Store, Account: account}
	if k, err := other.FindKey(ctx, two.ID); err != nil || k.Caller.InstanceID != "i-2" || k.Caller.AccessKeyID != two.ID {
		t.Errorf("got %+v, %v", k, err)
	}
	w.now = w.now.Add(2 * time.Hour)
	if err := w.keys.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keys.FindKey(ctx, two.ID); err != nil {
		t.Errorf("key that just expired: got %v", err)
	}
	w.now = w.now.Add(25 * time.Hour)
	if err := w.keys.Purge(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keys.FindKey(ctx, two.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("purged key: got %v", err)
	}
	if _, err := w.keys.FindKey(ctx, w.root.ID); err != nil {
		t.Errorf("root key: got %v", err)
	}
}

// A key that is revoked right after it was stored is not remembered.
func TestAKeyThatIsRevokedAtOnce(t *testing.T) {
	w := newWorld(t)
	revoked := make(chan error, 1)
	w.keys.Store.SetSeam(func(point string) {
		if !strings.Contains(point, "IssueSession") || !strings.HasSuffix(point, "/after") {
			return
		}
		go func() { revoked <- w.keys.Revoke(context.Background(), "i-1") }()
		select {
		case err := <-revoked: // before the issue has come to its end
			revoked <- err
		case <-time.After(50 * time.Millisecond): // it waits for the issue, as it should
		}
	})
	key, err := w.keys.IssueSession(t.Context(), awsapi.Caller{InstanceID: "i-1", ARN: "arn:i-1"}, time.Hour)
	if err := errors.Join(err, <-revoked); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keys.FindKey(t.Context(), key.ID); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("the revoked key: got %v", err)
	}
}

func TestAllowed(t *testing.T) {
	for _, tt := range []struct {
		allow, deny []string
		action      string
		want        bool
	}{
		{[]string{"*"}, nil, "pcs:GetCluster", true},
		{[]string{"pcs:get*"}, nil, "pcs:GetCluster", true},
		{[]string{"PCS:*"}, []string{"pcs:Delete*"}, "pcs:DeleteCluster", false},
		{[]string{"ec2:*"}, nil, "pcs:GetCluster", false},
		{nil, nil, "pcs:GetCluster", false},
	} {
		if got := (awsapi.Caller{Allow: tt.allow, Deny: tt.deny}).Allowed(tt.action); got != tt.want {
			t.Errorf("allow %v deny %v: %s is %v", tt.allow, tt.deny, tt.action, got)
		}
	}
}
