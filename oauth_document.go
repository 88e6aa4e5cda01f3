package main

import (
	"cmp"
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
)

// Applications that nobody has registered (draft-ietf-oauth-client-id-metadata-document; contract, section 13): the
// client_id is the address of a document that says what the application is. It is fetched when somebody who has signed
// in is to be asked, and kept in memory only. A row of apps is made once somebody agrees.

const (
	maxDocumentAddress = 255     // bytes, since it is in tokens
	maxDocument        = 5 << 10 // bytes
	documentLimit      = 5 * time.Second
	maxDocuments       = 1000      // that are kept
	documentKept       = time.Hour // at most, as the answer's Cache-Control says
	documentKeptLeast  = time.Minute * 5
	documentRetry      = 30 * time.Second // what an application is told to wait whose document can't be fetched
	documentsOfCaller  = 10               // fetches a minute for an account whose owner has signed in
	documentsOfHost    = 60               // fetches a minute of a host
)

// documentAway is the key of a text for the developer of an application whose document can't be fetched. It does not
// tell why, so nobody learns of inner networks by it.
const documentAway = "fault_document_away"

// clientDocuments fetches documents and keeps them.
type clientDocuments struct {
	enabled   bool     // -client-documents
	allowed   []string // addresses of -client-document-list; none: any
	outbound  *outbound
	monotonic func() time.Time

	mu   sync.Mutex
	kept map[string]*keptDocument // by address
}

// A keptDocument is what came of fetching a document, once load has returned.
type keptDocument struct {
	load  func()    // fetches it, once
	until time.Time // clientDocuments.mu guards it
	app   *app      // of the kind appDocument, without an id; nil: there is none
	fault string    // then the key of a text why
}

// newClientDocuments makes what fetches documents. It has a client of its own, which calls public addresses only and
// shares no connection with what -outbound-allow admits.
func newClientDocuments(o nounOptions, st *store) *clientDocuments {
	d := &clientDocuments{enabled: o.clientDocuments, allowed: o.clientDocumentList, outbound: newOutbound(nil),
		monotonic: time.Now, kept: map[string]*keptDocument{}}
	d.outbound.limit, d.outbound.blocked = documentLimit, st.waits
	return d
}

// takes reports whether a client_id is the address of a document, and this service looks at documents there.
func (d *clientDocuments) takes(clientID string) bool {
	return d.enabled && isDocumentAddress(clientID) && (len(d.allowed) == 0 || slices.Contains(d.allowed, clientID))
}

// isDocumentAddress reports whether a client_id has the form of a document's address: https in normal form, with a host
// name and a path, without port, query, user name, fragment and segments that are . or ..
func isDocumentAddress(s string) bool {
	if len(s) > maxDocumentAddress || !strings.HasPrefix(s, "https://") || strings.Contains(s, "?") {
		return false
	}
	normal, code, _ := (&outbound{}).checkURL(s)
	u, err := url.Parse(s)
	if code != "" || err != nil || normal != s || u.Path == "/" {
		return false
	}
	dots := func(segment string) bool { return segment == "." || segment == ".." }
	return !slices.ContainsFunc(strings.Split(u.Path, "/"), dots)
}

// lookUp returns what is kept of a document, or fetches it: one fetch at a time for an address, to which limit agrees.
// Others wait for the same answer, so it is fetched even when the caller has gone.
func (d *clientDocuments) lookUp(ctx context.Context, address string, limit func() error) (*keptDocument, error) {
	d.mu.Lock()
	k, known := d.kept[address]
	if !known || !d.monotonic().Before(k.until) {
		if err := limit(); err != nil {
			d.mu.Unlock()
			return nil, err
		}
		k = &keptDocument{until: d.monotonic().Add(documentKept)}
		k.load = sync.OnceFunc(func() {
			kept := d.fetch(context.WithoutCancel(ctx), address, k)
			d.mu.Lock()
			defer d.mu.Unlock()
			if k.until = d.monotonic().Add(kept); k.app == nil {
				delete(d.kept, address) // what failed is not kept
			}
		})
		for gone := range d.kept {
			if len(d.kept) >= maxDocuments {
				delete(d.kept, gone)
			}
		}
		d.kept[address] = k
	}
	d.mu.Unlock()
	k.load()
	return k, nil
}

// fetch fetches a document, sets what came of it in k, and returns for how long a document is kept.
func (d *clientDocuments) fetch(ctx context.Context, address string, k *keptDocument) (kept time.Duration) {
	answer, err := d.outbound.do(ctx, outboundRequest{method: http.MethodGet, url: address, largest: maxDocument,
		header: http.Header{"Accept": {"application/json"}, "Connection": {"close"}}})
	k.fault = "fault_document_wrong"
	switch {
	case reasonOf(err) == outboundTooLarge:
		return 0
	case err != nil || answer.status != http.StatusOK:
		k.fault = documentAway
		return 0
	}
	kind, _, err := mime.ParseMediaType(answer.header.Get("Content-Type"))
	if err == nil && kind == "application/json" {
		k.app = readDocument(address, answer.body)
	}
	return keptFor(answer.header)
}

// maxAge matches the seconds for which a Cache-Control allows to keep an answer, and what forbids it.
var maxAge = lazyPattern(`(?i)(?:^|[, ])(?:max-age="?(\d{1,9})\b|no-store|no-cache)`)

// keptFor returns for how long the header of an answer allows to keep it, within bounds of our own.
func keptFor(h http.Header) time.Duration {
	all := maxAge().FindAllStringSubmatch(strings.Join(h.Values("Cache-Control"), ","), -1)
	if all == nil {
		return documentKeptLeast
	}
	kept := documentKept
	for _, found := range all {
		seconds, _ := strconv.Atoi(found[1]) // 0 where keeping is forbidden
		kept = min(kept, time.Duration(seconds)*time.Second)
	}
	return max(kept, documentKeptLeast)
}

// readDocument returns the application that a document describes, without an id, or nil unless the document names its
// own address, no secret, and that the application can do without one. All else that can't be used is left out, and a
// member of which nothing is left is as if it were not there: without a name the application is called by its host, and
// without scope the request for consent names them.
func readDocument(address string, text []byte) *app {
	document, err := parseJSON(text)
	if err != nil || rawMember(&document, "client_id") != address {
		return nil
	}
	for _, secret := range []string{"client_secret", "client_secret_expires_at"} {
		if v, has := document.member(secret); has && v.kind != jsonNull {
			return nil
		}
	}
	methods := textsOf(&document, "token_endpoint_auth_methods_supported")
	if rawMember(&document, "token_endpoint_auth_method") != "none" && !slices.Contains(methods, "none") {
		return nil
	}
	host, all := hostOf(address), strings.Join(appScopes, " ")
	p := &app{Kind: appDocument, HomePage: address, Host: &host, Owner: host, Origins: []string{},
		Name: cleanAppName(rawMember(&document, "client_name")), RedirectURIs: []string{},
		Scope: scopesWithin(rawMember(&document, "scope"), all)}
	p.Name = cmp.Or(p.Name, cutText(host, maxAppName))
	p.unscoped = p.Scope == ""
	p.Scope = cmp.Or(p.Scope, all)
	for _, uri := range textsOf(&document, "redirect_uris") {
		if code, _ := checkRedirectURI(appDocument, uri); code == "" && !slices.Contains(p.RedirectURIs, uri) {
			p.RedirectURIs = append(p.RedirectURIs, uri)
		}
	}
	return p
}

// textsOf returns the texts of a member that is a list.
func textsOf(v *jsonValue, name string) (texts []string) {
	if list, ok := v.member(name); ok {
		list.open()
		for _, each := range list.list {
			if each.kind == jsonString {
				texts = append(texts, each.text)
			}
		}
	}
	return texts
}

// cleanAppName returns a name that checkAppName passes, of at most maxAppName characters; "": nothing is left of it.
func cleanAppName(name string) string {
	words := strings.FieldsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || isInvisible(r) })
	name = cutText(strings.Join(words, " "), maxAppName)
	if code, _ := checkAppName.of(name); code != "" {
		return ""
	}
	return name
}

// saveDocument writes the application of a document to which somebody agrees, and completes p. by is that person.
func saveDocument(t *tx, p *app, by string) error {
	known, err := t.workingApp(p.HomePage)
	switch {
	case errors.Is(err, errApp):
		p.ID, p.CreatedAt, p.UpdatedAt, p.MadeBy = t.newID("app"), t.now, t.now, creatorName(actorPerson(by))
		if p.AccountID, err = t.mainAccount(); err == nil {
			t.addApp(p)
		}
		return err
	case err != nil:
		return err
	}
	p.ID, p.AccountID, p.CreatedAt, p.UpdatedAt = known.ID, known.AccountID, known.CreatedAt, t.now
	t.saveApp(p)
	return nil
}
