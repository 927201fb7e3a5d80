package awsapi

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// pageLife is how long a pagination token is good for, as PCS documents.
const pageLife = 24 * time.Hour

// pager seals the cursors of pagination. The tokens are opaque to clients,
// and bound to the caller's account, the operation and its arguments.
type pager struct{ aead cipher.AEAD }

// newPager derives the sealing key from the secret.
func newPager(secret []byte) *pager {
	key := sha256.Sum256(append([]byte("openpcs pagination\n"), secret...))
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the key has the right length
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err) // AES has the right block size
	}
	return &pager{aead: aead}
}

// lonePager serves requests that did not come through a Server (tests of
// handlers); nobody else can make tokens for it.
var lonePager = func() *pager {
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails (crypto/rand)
	return newPager(secret[:])
}()

func (r *Request) pages() *pager {
	if r.pager == nil {
		return lonePager
	}
	return r.pager
}

// binding is what a token is good for, and nothing else.
func (r *Request) binding(args any) []byte {
	doc, err := json.Marshal(args)
	if err != nil {
		doc = fmt.Append(nil, args)
	}
	return slices.Concat([]byte(r.Account+"\n"+r.Region+"\n"+r.Service+"\n"+r.Operation+"\n"), doc)
}

// PageToken seals a cursor for the next call of the same operation with the
// same args.
func (r *Request) PageToken(args any, cursor string) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(r.Now.Unix())) // the bits come back the same
	plain = append(plain, cursor...)
	return base64.RawURLEncoding.EncodeToString(r.pages().aead.Seal(nil, nil, plain, r.binding(args)))
}

// PageCursor opens a token that PageToken made. Its error is a *Fault.
func (r *Request) PageCursor(args any, token string) (string, error) {
	sealed, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return "", badToken("is not valid")
	}
	plain, err := r.pages().aead.Open(nil, nil, sealed, r.binding(args))
	if err != nil || len(plain) < 8 {
		return "", badToken("is not valid, or belongs to a call with other arguments")
	}
	made := time.Unix(int64(binary.BigEndian.Uint64(plain)), 0) // as above
	if r.Now.Sub(made) > pageLife {
		return "", badToken("has expired: tokens are good for 24 hours")
	}
	return string(plain[8:]), nil
}

func badToken(what string) error {
	return &Fault{Kind: FaultBadToken, Name: "nextToken", Message: "The pagination token " + what + ". Start again without a token."}
}

// Page returns the page of items that the token asks for, at most size of
// them, and the token of the page after it (empty at the end). The key orders
// the items and must be unique and stable, so that what is made or deleted
// between two calls neither repeats nor hides another item. Args are the
// other arguments of the call.
func Page[T any](r *Request, args any, token string, size int, items []T, key func(T) string) (page []T, next string, err error) {
	after := ""
	if token != "" {
		if after, err = r.PageCursor(args, token); err != nil {
			return nil, "", err
		}
	}
	// A key is made once for each item: sorting would make it a dozen times.
	type keyed struct {
		key  string
		item int
	}
	rest := make([]keyed, 0, len(items))
	for n, it := range items {
		if k := key(it); token == "" || k > after {
			rest = append(rest, keyed{k, n})
		}
	}
	slices.SortStableFunc(rest, func(a, b keyed) int { return strings.Compare(a.key, b.key) })
	if size > 0 && len(rest) > size {
		rest = rest[:size]
		next = r.PageToken(args, rest[size-1].key)
	}
	page = make([]T, len(rest))
	for n, k := range rest {
		page[n] = items[k.item]
	}
	return page, next, nil
}

// CreationKey orders by time of creation, then id.
func CreationKey(created time.Time, id string) string {
	return created.UTC().Format("2006-01-02T15:04:05.000000000Z") + " " + id
}
