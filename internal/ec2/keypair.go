package ec2

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/md5" // EC2 defines its fingerprints so
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1" // as above
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// KeyPair is the public half of an SSH key.
type KeyPair struct {
	ID          string            `json:"id"`
	Region      string            `json:"region"`
	Name        string            `json:"name"`
	Type        string            `json:"type"` // rsa or ed25519
	Fingerprint string            `json:"fingerprint"`
	PublicKey   string            `json:"publicKey"` // a line of authorized_keys
	CreatedAt   time.Time         `json:"createdAt"`
	Tags        map[string]string `json:"tags,omitempty"`
}

// KeyPairs is where key pairs are stored, by name within a region.
var KeyPairs = store.NewCollection("keypair", func(k KeyPair) store.Index {
	return store.Index{ID: k.ID, Region: k.Region, Name: k.Name}
})

func (e *EC2) keyPairOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("DescribeKeyPairs", true, e.describeKeyPairs),
		op("CreateKeyPair", false, e.createKeyPair),
		op("ImportKeyPair", false, e.importKeyPair),
		op("DeleteKeyPair", false, e.deleteKeyPair),
	}
}

type describeKeyPairsIn struct {
	common
	Names         []string `query:"KeyName"`
	IDs           []string `query:"KeyPairId"`
	IncludePublic bool     `query:"IncludePublicKey"`
	Filters       []filter `query:"Filter"`
}

type describeKeyPairsOut struct {
	Keys []keyPairXML `xml:"keySet"`
}

type keyPairXML struct {
	ID          string    `xml:"keyPairId"`
	Name        string    `xml:"keyName"`
	Type        string    `xml:"keyType"`
	Fingerprint string    `xml:"keyFingerprint"`
	PublicKey   string    `xml:"publicKey,omitempty"`
	CreatedAt   time.Time `xml:"createTime"`
	Tags        []tagXML  `xml:"tagSet,omitempty"`
}

var keyPairFilters = filters[KeyPair]{
	fields: map[string]func(KeyPair) []string{
		"key-pair-id": one(func(k KeyPair) string { return k.ID }),
		"key-name":    one(func(k KeyPair) string { return k.Name }),
		"fingerprint": one(func(k KeyPair) string { return k.Fingerprint }),
	},
	tags: func(k KeyPair) map[string]string { return k.Tags },
}

func (e *EC2) describeKeyPairs(ctx context.Context, r *awsapi.Request, in *describeKeyPairsIn) (*describeKeyPairsOut, error) {
	var all []KeyPair
	err := e.store.View(ctx, func(tx *store.Tx) error {
		var err error
		all, err = KeyPairs.InRegion(tx, r.Region)
		return err
	})
	if err != nil {
		return nil, err
	}
	all, missing := selected(all, in.Names, func(k KeyPair) string { return k.Name })
	if len(missing) > 0 {
		return nil, fail("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", missing[0])
	}
	if all, missing = selected(all, in.IDs, func(k KeyPair) string { return k.ID }); len(missing) > 0 {
		return nil, fail("InvalidKeyPair.NotFound", "The key pair ID '%s' does not exist", missing[0])
	}
	if all, err = keyPairFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	out := &describeKeyPairsOut{}
	for _, k := range all {
		x := keyPairXML{k.ID, k.Name, k.Type, k.Fingerprint, "", k.CreatedAt, tagsXML(k.Tags)}
		if in.IncludePublic {
			x.PublicKey = k.PublicKey
		}
		out.Keys = append(out.Keys, x)
	}
	return out, nil
}

type createKeyPairIn struct {
	common
	Name   string    `query:"KeyName,required"`
	Type   string    `query:"KeyType"`
	Format string    `query:"KeyFormat"`
	Tags   []tagSpec `query:"TagSpecification"`
}

type createKeyPairOut struct {
	ID          string   `xml:"keyPairId"`
	Name        string   `xml:"keyName"`
	Fingerprint string   `xml:"keyFingerprint"`
	Material    string   `xml:"keyMaterial,omitempty"`
	Tags        []tagXML `xml:"tagSet,omitempty"`
}

func (e *EC2) createKeyPair(ctx context.Context, r *awsapi.Request, in *createKeyPairIn) (*createKeyPairOut, error) {
	if in.Format != "" && in.Format != "pem" {
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter keyFormat is invalid. openpcs makes keys in the pem format only.", in.Format)
	}
	k := KeyPair{Type: in.Type}
	var material []byte
	var err error
	switch in.Type {
	case "", "rsa":
		k.Type = "rsa"
		material, err = k.newRSA()
	case "ed25519":
		material, err = k.newEd25519()
	default:
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter keyType is invalid. It must be rsa or ed25519.", in.Type)
	}
	if err != nil {
		return nil, fmt.Errorf("make key pair: %w", err)
	}
	out, err := e.addKeyPair(ctx, r, k, in.Name, in.Tags)
	if err != nil {
		return nil, err
	}
	out.Material = string(material)
	return out, nil
}

type importKeyPairIn struct {
	common
	Name   string    `query:"KeyName,required"`
	Public []byte    `query:"PublicKeyMaterial,required"`
	Tags   []tagSpec `query:"TagSpecification"`
}

func (e *EC2) importKeyPair(ctx context.Context, r *awsapi.Request, in *importKeyPairIn) (*createKeyPairOut, error) {
	k, err := parsePublicKey(string(in.Public))
	if err != nil {
		return nil, fail("InvalidKey.Format", "Key is not in valid OpenSSH public key format: %v", err)
	}
	return e.addKeyPair(ctx, r, k, in.Name, in.Tags)
}

func (e *EC2) addKeyPair(ctx context.Context, r *awsapi.Request, k KeyPair, name string, specs []tagSpec) (*createKeyPairOut, error) {
	if name == "" || len(name) > 255 || strings.TrimSpace(name) != name || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c > '~' }) {
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter keyName is invalid. It must have 1 to 255 ASCII characters without blanks around them.", name)
	}
	tags, err := tagsFor("key-pair", specs)
	if err != nil {
		return nil, err
	}
	k.ID, k.Region, k.Name, k.CreatedAt, k.Tags = fleet.NewEC2ID("key"), r.Region, name, r.Now, tags
	// The name goes into authorized_keys as the comment, as on EC2.
	k.PublicKey += " " + name
	err = e.store.Update(ctx, func(tx *store.Tx) error { return KeyPairs.Put(tx, k) })
	if errors.Is(err, store.ErrExists) {
		return nil, fail("InvalidKeyPair.Duplicate", "The keypair already exists")
	}
	if err != nil {
		return nil, err
	}
	return &createKeyPairOut{ID: k.ID, Name: k.Name, Fingerprint: k.Fingerprint, Tags: tagsXML(tags)}, nil
}

type deleteKeyPairIn struct {
	common
	Name string `query:"KeyName"`
	ID   string `query:"KeyPairId"`
}

type deleteKeyPairOut struct {
	Return bool   `xml:"return"`
	ID     string `xml:"keyPairId,omitempty"`
}

// deleteKeyPair succeeds for a key pair that does not exist, as on EC2.
func (e *EC2) deleteKeyPair(ctx context.Context, r *awsapi.Request, in *deleteKeyPairIn) (*deleteKeyPairOut, error) {
	if in.Name == "" && in.ID == "" {
		return nil, fail("MissingParameter", "The request must contain the parameter KeyName or KeyPairId")
	}
	out := &deleteKeyPairOut{Return: true}
	err := e.store.Update(ctx, func(tx *store.Tx) error {
		all, err := KeyPairs.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		for _, k := range all {
			if (in.ID == "" || in.ID == k.ID) && (in.Name == "" || in.Name == k.Name) {
				out.ID = k.ID
				return KeyPairs.Delete(tx, k.ID)
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

const (
	sshRSA     = "ssh-rsa"
	sshEd25519 = "ssh-ed25519"
)

// newRSA makes a key and returns its PEM.
func (k *KeyPair) newRSA() ([]byte, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	k.Fingerprint = colons(sha1.Sum(pkcs8)) // as EC2 does
	k.PublicKey = sshRSA + " " + base64.StdEncoding.EncodeToString(rsaWire(&key.PublicKey))
	return pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}), nil
}

// newEd25519 makes a key and returns it in OpenSSH's own format, the only
// one that ssh reads for this type.
func (k *KeyPair) newEd25519() ([]byte, error) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	wire := ed25519Wire(public)
	k.Fingerprint = sha256Fingerprint(wire)
	k.PublicKey = sshEd25519 + " " + base64.StdEncoding.EncodeToString(wire)

	var check [4]byte
	_, _ = rand.Read(check[:]) // never fails (crypto/rand)
	secret := bytes.Join([][]byte{check[:], check[:], sshString([]byte(sshEd25519)), sshString(public), sshString(private), sshString(nil)}, nil)
	for pad := byte(1); len(secret)%8 != 0; pad++ {
		secret = append(secret, pad)
	}
	doc := bytes.Join([][]byte{
		[]byte("openssh-key-v1\x00"),
		sshString([]byte("none")), sshString([]byte("none")), sshString(nil), // not encrypted
		{0, 0, 0, 1},
		sshString(wire), sshString(secret),
	}, nil)
	return pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: doc}), nil
}

// parsePublicKey reads a line of authorized_keys.
func parsePublicKey(line string) (KeyPair, error) {
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return KeyPair{}, errors.New("expected a type and a key")
	}
	wire, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return KeyPair{}, errors.New("the key is not base64")
	}
	name, rest, ok := cutSSHString(wire)
	if !ok || string(name) != fields[0] {
		return KeyPair{}, errors.New("the key is not of the type that the line says")
	}
	k := KeyPair{PublicKey: fields[0] + " " + fields[1]}
	switch fields[0] {
	case sshRSA:
		exponent, rest, ok1 := cutSSHString(rest)
		modulus, rest, ok2 := cutSSHString(rest)
		e := new(big.Int).SetBytes(exponent)
		if !ok1 || !ok2 || len(rest) != 0 || !e.IsInt64() || e.Int64() < 3 || e.Int64() > 1<<31-1 {
			return KeyPair{}, errors.New("the RSA key is malformed")
		}
		public := &rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: int(e.Int64())}
		if n := public.N.BitLen(); n < 1024 || n > 4096 {
			return KeyPair{}, fmt.Errorf("an RSA key must have 1024 to 4096 bits, not %d", n)
		}
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			return KeyPair{}, errors.New("the RSA key is malformed")
		}
		k.Type, k.Fingerprint = "rsa", colons(md5.Sum(der)) // as EC2 does
	case sshEd25519:
		public, rest, ok := cutSSHString(rest)
		if !ok || len(rest) != 0 || len(public) != ed25519.PublicKeySize {
			return KeyPair{}, errors.New("the ed25519 key is malformed")
		}
		k.Type, k.Fingerprint = "ed25519", sha256Fingerprint(wire)
	default:
		return KeyPair{}, fmt.Errorf("type %s is not supported, only %s and %s", fields[0], sshRSA, sshEd25519)
	}
	return k, nil
}

func rsaWire(k *rsa.PublicKey) []byte {
	return bytes.Join([][]byte{
		sshString([]byte(sshRSA)), sshMPInt(big.NewInt(int64(k.E))), sshMPInt(k.N),
	}, nil)
}

func ed25519Wire(public ed25519.PublicKey) []byte {
	return append(sshString([]byte(sshEd25519)), sshString(public)...)
}

func sshString(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...) // keys are short
}

func sshMPInt(n *big.Int) []byte {
	b := n.Bytes()
	if len(b) > 0 && b[0]&0x80 != 0 {
		b = append([]byte{0}, b...) // else it would be negative
	}
	return sshString(b)
}

func cutSSHString(b []byte) (s, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := binary.BigEndian.Uint32(b)
	if uint64(n) > uint64(len(b)-4) {
		return nil, nil, false
	}
	return b[4 : 4+n], b[4+n:], true
}

func colons[T [sha1.Size]byte | [md5.Size]byte](sum T) string {
	var parts []string
	for i := range len(sum) {
		parts = append(parts, hex.EncodeToString([]byte{sum[i]}))
	}
	return strings.Join(parts, ":")
}

func sha256Fingerprint(wire []byte) string {
	sum := sha256.Sum256(wire)
	return base64.StdEncoding.EncodeToString(sum[:])
}
