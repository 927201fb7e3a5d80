package awsapi

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// rootName is the IAM user whose key is made at first start.
const rootName = "openpcs-admin"

// expiredFor is how long an expired key stays, so that its user is told that
// it expired and not that it is unknown.
const expiredFor = 24 * time.Hour

// accessKeys is where keys are kept; the parent is the instance they belong
// to, and the name tells the root key.
var accessKeys = store.NewCollection("accesskey", func(k Key) store.Index {
	ix := store.Index{ID: k.ID, Parent: k.Caller.InstanceID}
	if k.Caller.InstanceID == "" && k.Token == "" {
		ix.Name = k.Caller.ARN
	}
	return ix
})

// Keys finds keys in the store. It keeps those it saw in memory, so all
// changes must go through it.
type Keys struct {
	Store   *store.Store
	Account string
	Now     func() time.Time // nil: time.Now

	mu    sync.RWMutex
	known map[string]Key
}

func (k *Keys) now() time.Time {
	if k.Now == nil {
		return time.Now()
	}
	return k.Now()
}

// FindKey returns the key, expired or not; the front door tells the two
// apart.
func (k *Keys) FindKey(ctx context.Context, id string) (Key, error) {
	k.mu.RLock()
	key, ok := k.known[id]
	k.mu.RUnlock()
	if ok {
		return key, nil
	}
	// Under the lock, so that a key that is being revoked does not come back.
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		key, err = accessKeys.Get(tx, id)
		return err
	})
	if err != nil {
		return Key{}, err
	}
	k.remember(key)
	return key, nil
}

// remember needs the lock.
func (k *Keys) remember(key Key) {
	if k.known == nil {
		k.known = map[string]Key{}
	}
	k.known[key.ID] = key
}

// EnsureRoot returns the key of the administrator and makes it at first use.
func (k *Keys) EnsureRoot(ctx context.Context) (Key, error) {
	arn := "arn:aws:iam::" + k.Account + ":user/" + rootName
	var key Key
	err := k.Store.Update(ctx, func(tx *store.Tx) error {
		var err error
		key, err = accessKeys.Find(tx, "", "", arn)
		if !errors.Is(err, store.ErrNotFound) {
			return err
		}
		key = Key{
			ID:     "AKIA" + randomBase32(16),
			Secret: randomSecret(30),
			Caller: Caller{Account: k.Account, ARN: arn, UserID: "AIDA" + randomBase32(17), Allow: []string{"*"}},
		}
		key.Caller.AccessKeyID = key.ID
		return accessKeys.Put(tx, key)
	})
	if err != nil {
		return Key{}, fmt.Errorf("make the administrator's access key: %w", err)
	}
	return key, nil
}

// IssueSession makes a short-lived key with a session token for the caller.
func (k *Keys) IssueSession(ctx context.Context, c Caller, ttl time.Duration) (Key, error) {
	return k.IssueSessionIf(ctx, c, ttl, func(*store.Tx) error { return nil })
}

// IssueSessionIf is IssueSession on a condition, for example that the instance
// whose role it is still runs. The condition is looked at in the transaction
// that stores the key, so that what ends it can revoke all keys there are.
func (k *Keys) IssueSessionIf(ctx context.Context, c Caller, ttl time.Duration, condition func(*store.Tx) error) (Key, error) {
	key := Key{
		ID:      "ASIA" + randomBase32(16),
		Secret:  randomSecret(30),
		Token:   "IQoJb3BlbnBjcw" + randomSecret(192),
		Caller:  c,
		Expires: k.now().Add(ttl).UTC().Truncate(time.Second),
	}
	key.Caller.AccessKeyID = key.ID
	// Under the lock, so that a key that is revoked as soon as it is stored is
	// not remembered after that.
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.Store.Update(ctx, func(tx *store.Tx) error {
		if err := condition(tx); err != nil {
			return err
		}
		return accessKeys.Put(tx, key)
	})
	if err != nil {
		return Key{}, fmt.Errorf("issue session key: %w", err)
	}
	k.remember(key)
	return key, nil
}

// Revoke removes all keys of an instance, at once.
func (k *Keys) Revoke(ctx context.Context, instanceID string) error {
	if instanceID == "" {
		return nil
	}
	return k.remove(ctx, "revoke the keys of "+instanceID, func(key Key) bool { return key.Caller.InstanceID == instanceID })
}

// Purge removes keys that expired more than a day ago. Call it now and then.
func (k *Keys) Purge(ctx context.Context) error {
	limit := k.now().Add(-expiredFor)
	return k.remove(ctx, "purge expired keys", func(key Key) bool { return !key.Expires.IsZero() && key.Expires.Before(limit) })
}

func (k *Keys) remove(ctx context.Context, what string, gone func(Key) bool) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	err := k.Store.Update(ctx, func(tx *store.Tx) error {
		all, err := accessKeys.All(tx)
		if err != nil {
			return err
		}
		for _, key := range all {
			if !gone(key) {
				continue
			}
			delete(k.known, key.ID)
			if err := accessKeys.Delete(tx, key.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func sameSecret(a, b string) bool {
	return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1
}

// randomBase32 returns n characters of the alphabet of key ids.
func randomBase32(n int) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	for i := range b {
		b[i] = alphabet[b[i]%32]
	}
	return string(b)
}

// randomSecret returns n random bytes as text, four characters for three.
func randomSecret(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // as above
	return base64.StdEncoding.EncodeToString(b)
}
