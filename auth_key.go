package main

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// keyNoun declares the keys that sign tokens.
func keyNoun() noun {
	return noun{
		name:     "key",
		modules:  func(s *server) []module { return []module{keyModule(s)} },
		commands: keyCommands,
		troubles: keyTroubles,
		check:    lackingKeys,
		events:   keyEvents,
	}
}

// jwksPath is the path of the public keys, outside the base address.
const jwksPath = "/.well-known/jwks.json"

// pemPath is the path of the same as PEM, for who pins them.
const pemPath = "/keys.pem"

func keyModule(s *server) module {
	return module{
		roots: []rootPath{
			{path: jwksPath, open: true, serve: s.getKeys,
				answers:  answerForm{media: "application/jwk-set+json", cached: true},
				endpoint: servedBy[keySet](s.getKeys)},
			{path: pemPath, open: true, serve: s.getPublicKeys,
				answers:  answerForm{media: "application/x-pem-file", cached: true},
				endpoint: servedBy[string](s.getPublicKeys)},
		},
	}
}

// The event types of keys. No account owns the keys, so their events belong to the main account.
var (
	keyEvents eventTable

	eventKeyAdded   = keyEvents.add("key.added")
	eventKeyRotated = keyEvents.add("key.rotated")
	eventKeyRetired = keyEvents.add("key.retired")
	_               = keyEvents.add("key.put_back") // written by 1.1.0 alone, which wrote a missing file anew
)

// The operator's commands on the key file.
var keyCommands = []command{
	{"key list", "", "list the keys, the signing key first", nil, keyList},
	{"key public", "", "print the public keys as PEM, the signing key first", nil, keyPublic},
	{"key add", "", "add a key that verifies tokens but does not sign them yet", nil, keyAdd},
	{"key rotate", "", "sign with the newest key from now on; it must be a day old", []option{
		optForce.says("use the newest key although it was added less than a day ago"),
	}, keyRotate},
	{"key retire", "KID", "remove a key; refused while unexpired tokens are signed with it", []option{
		optForce.says("remove the key although unexpired tokens and leases end with it"),
	}, keyRetire},
}

// loadKeys loads the key file and returns its path. It must not be called while the caller has the database
// open, because it opens the database itself if the key file is missing.
func (e *env) loadKeys() (path string, ring *keyring, err error) {
	if path, err = e.file("key"); err != nil {
		return path, nil, err
	}
	ring, err = loadKeyring(path)
	if errors.As(err, new(missingKeys)) {
		issued, _ := e.hasIssued()
		err = missingKeys{path, issued}
	}
	return path, ring, err
}

// keyFile is loadKeys where only the keys matter, as for a routeCommand.
func (e *env) keyFile() (*keyring, error) {
	_, ring, err := e.loadKeys()
	return ring, err
}

// hasIssued reports whether the database holds anything that works only with its own key file, such as issued
// tokens, or a service runs, which has loaded that. With an error, which says why that is not known, it reports true.
func (e *env) hasIssued() (issued bool, err error) {
	path, err := e.file("db")
	if err == nil && !fileExists(path) {
		return false, nil
	}
	if service, _ := askService(e.ctx, path); service != nil {
		return true, nil
	}
	issued, err = queried(e, func(q *queries) (bool, error) {
		return q.hasRows(collectNouns(e.nouns, func(n *noun) []string { return n.sealed }))
	})
	return issued || err != nil, err
}

// keyList runs 'widgetd key list'.
func keyList(e *env) error {
	_, ring, err := e.loadKeys()
	if err != nil {
		return err
	}
	type keyRow struct {
		Kid       string `json:"kid"`
		Signs     bool   `json:"signs"`
		CreatedAt stamp  `json:"created_at"`
	}
	rows := []keyRow{}
	for i, key := range ring.keys {
		rows = append(rows, keyRow{Kid: key.kid, Signs: i == 0, CreatedAt: key.createdAt})
	}
	return printObjects(e, "KID SIGNS CREATED=created_at", nil, rows)
}

// keyPublic runs 'widgetd key public'.
func keyPublic(e *env) error {
	_, ring, err := e.loadKeys()
	if err != nil {
		return err
	}
	for i := range ring.keys {
		text, err := ring.keys[i].pem()
		if err != nil {
			return err
		}
		kid := ring.keys[i].kid
		row := map[string]any{"kid": kid, "signs": i == 0, "created_at": ring.keys[i].createdAt, "pem": text}
		if err := e.printAsIs(row, keyComment(kid, stamp{})+strings.TrimSuffix(text, "\n")); err != nil {
			return err
		}
	}
	return nil
}

// pem returns the public half as PEM.
func (k *signingKey) pem() (string, error) {
	der, err := x509.MarshalPKIXPublicKey(k.public)
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})), err
}

// changeKeys loads the key file, calls f, saves the result and writes the event that f returns.
// The database is opened before the key file is changed, so that a change lacks its event only
// if writing the event fails. It holds a lock (flock(2)): a second command that changes keys at
// the same time would otherwise undo the first one's change.
func (e *env) changeKeys(f func(*store, *keyring) (event, error)) error {
	return e.withStore(func(st *store) error {
		if st.fenced() {
			return errFenced
		}
		var done event
		err := e.lockKeys(func(ring *keyring) (err error) {
			done, err = f(st, ring)
			return err
		})
		if err != nil {
			return err
		}
		err = st.update(e.ctx, func(t *tx) (err error) {
			if done.AccountID, err = t.mainAccount(); err != nil {
				return err
			}
			done.Actor = e.actor()
			t.addEvent(done)
			return nil
		})
		if err != nil {
			return fmt.Errorf("the key file was changed, but the event %s could not be written: %w", done.Type, err)
		}
		return nil
	})
}

// lockKeys is changeKeys without the event.
func (e *env) lockKeys(f func(*keyring) error) error {
	path, err := e.file("key")
	if err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(linkTarget(path))) // a lock on the file itself would end when it is replaced
	if err != nil {
		return fmt.Errorf("lock the key file: %w", err)
	}
	defer dir.Close()
	if err := syscall.Flock(int(dir.Fd()), syscall.LOCK_EX); err != nil {
		return fmt.Errorf("lock the key file: %w", err)
	}
	ring, err := loadKeyring(path)
	if err != nil {
		return err
	}
	if err := f(ring); err != nil {
		return err
	}
	return ring.save(path, true)
}

// keyAdd runs 'widgetd key add'.
func keyAdd(e *env) error {
	key, err := newSigningKey(e.now())
	if err != nil {
		return err
	}
	err = e.changeKeys(func(_ *store, ring *keyring) (event, error) {
		ring.keys = append(ring.keys, key)
		return event{Type: eventKeyAdded, Data: eventData("kid", key.kid)}, nil
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"kid": key.kid}, key.kid+" verifies tokens from now on. "+
		"Publish it to devices that pin keys; a day from now, let it sign with 'widgetd key rotate'")
}

const minKeyAge = 24 * time.Hour // how long a key is public before it may sign

// keyRotate runs 'widgetd key rotate'.
func keyRotate(e *env) error {
	kid := ""
	err := e.changeKeys(func(_ *store, ring *keyring) (done event, err error) {
		newest := 0
		for i := range ring.keys {
			// Not After: of two keys of the same second, the one added last is the newest.
			if !ring.keys[i].createdAt.Before(ring.keys[newest].createdAt.Time) {
				newest = i
			}
		}
		if newest == 0 {
			return done, errors.New("the newest key is already the signing key: add another with 'widgetd key add'")
		}
		if age := e.now().Sub(ring.keys[newest].createdAt.Time); age < minKeyAge && !e.on("force") {
			return done, fmt.Errorf("the newest key was added only %s ago, and devices and caches may take "+
				"a day to learn of it: wait, or add -force", age.Round(time.Second))
		}
		key, old := ring.keys[newest], ring.signer().kid
		ring.keys = slices.Insert(slices.Delete(ring.keys, newest, newest+1), 0, key)
		kid = key.kid
		return event{Type: eventKeyRotated, Data: eventData("from", old, "to", kid)}, nil
	})
	if err != nil {
		return err
	}
	return e.print(map[string]string{"kid": kid}, kid+" is the signing key now")
}

// keyRetire runs 'widgetd key retire KID'.
func keyRetire(e *env) error {
	kid := e.args[0]
	err := e.changeKeys(func(st *store, ring *keyring) (done event, err error) {
		kid = ring.wholeKid(kid)
		needed, err := st.neededKeys(nil, e.now())
		if err != nil {
			return done, err
		}
		used := slices.IndexFunc(needed, func(k keyInUse) bool { return k.kid == kid })
		at := slices.IndexFunc(ring.keys, func(k signingKey) bool { return k.kid == kid })
		switch {
		case at < 0:
			return done, errors.New("there is no such key: 'widgetd key list' prints the kid of each")
		case at == 0:
			return done, errors.New("this is the signing key: let another key sign first, with 'widgetd key rotate'")
		case used >= 0 && !e.on("force"):
			return done, fmt.Errorf("%d unexpired device leases and %d unexpired tokens are signed with this key "+
				"and would end with it: wait until they have expired, or add -force",
				needed[used].leases, needed[used].tokens)
		}
		ring.keys = slices.Delete(ring.keys, at, at+1)
		return event{Type: eventKeyRetired, Data: eventData("kid", kid)}, nil
	})
	if err != nil {
		return err
	}
	return e.done("key " + kid + " retired")
}

// lackingKeys returns a line for each key that unexpired leases and tokens need and the key file lacks, although it
// was not retired.
func lackingKeys(q *queries, keys *keyring, now time.Time) (faults []string, err error) {
	needed, err := q.neededKeys(keys.kids(), now)
	for _, k := range needed {
		if !k.retired {
			faults = append(faults, fmt.Sprintf("key: the key file lacks %s, which %d unexpired device leases and %d "+
				"unexpired tokens need: restore the newest key file", k.kid, k.leases, k.tokens))
		}
	}
	return faults, err
}

// keyTroubles are those of the key file. Which keys it lacks is looked for by commands only, since that reads every
// device.
var keyTroubles = []trouble{
	{kind: "keys_lacking", urgency: rings, one: "a key that tokens or leases need is missing: $id",
		many: "$n keys that tokens or leases need are missing: $id (and $more more such: 'widgetd check' names all)",
		outside: func(v *statusView) (occurrence, error) {
			if v.keys == nil || v.store == nil {
				return occurrence{}, nil
			}
			lines, err := lackingKeys(v.queries, v.keys, v.now)
			return foundLines(lines), err
		}},
	{kind: "secrets_foreign", urgency: sameDay, money: true, one: "another key file has sealed what money needs: $id",
		many: "another key file has sealed what money needs: $id (and $more more such: 'widgetd check' names all)",
		inFile: func(v *statusView) (occurrence, error) {
			var all []string
			for _, foreign := range foreignOf(v.of) {
				if v.keys == nil {
					break
				}
				lines, err := foreign(v.queries, v.keys)
				if err != nil {
					return occurrence{}, err
				}
				all = append(all, lines...)
			}
			return foundLines(all), nil
		}},
}

// wholeKid returns the kid of the only key whose kid ends so, in at least leastIDEnd characters; else the text itself.
func (k *keyring) wholeKid(end string) string {
	var found []string
	for i := range k.keys {
		if kid := k.keys[i].kid; len(end) >= leastIDEnd && strings.HasSuffix(kid, end) {
			found = append(found, kid)
		}
	}
	if len(found) != 1 {
		return end
	}
	return found[0]
}

// A keySet is the public keys that verify tokens (RFC 7517).
type keySet struct {
	Keys []publicKey `json:"keys"` // The signing key first.
}

// Read the public keys.
//
// They verify tokens and leases. New keys are public for a day before they sign.
func (s *server) getKeys(w *response, _ *http.Request) {
	ring := s.keys.Load()
	set := keySet{Keys: make([]publicKey, 0, len(ring.keys))}
	for i := range ring.keys {
		set.Keys = append(set.Keys, ring.keys[i].jwk())
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	s.write(w, reply{status: http.StatusOK, body: encodeJSON(set)})
}

// Read the public keys as PEM.
//
// The same keys as PEM (RFC 7468), the one that signs first, each after a line with its thumbprint: a file that an
// application can pin.
func (s *server) getPublicKeys(w *response, r *http.Request) {
	var all strings.Builder
	ring := s.keys.Load()
	for i := range ring.keys {
		text, err := ring.keys[i].pem()
		if err != nil {
			s.fail(w, r, err)
			return
		}
		all.WriteString(keyComment(ring.keys[i].kid, stamp{}) + text)
	}
	w.Header().Set("Content-Type", "application/x-pem-file")
	w.Header().Set("Cache-Control", "public, max-age=300")
	s.write(w, reply{status: http.StatusOK, body: []byte(all.String())})
}
