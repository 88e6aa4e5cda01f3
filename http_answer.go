package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A response is the http.ResponseWriter of one request. It records the status that was
// sent, and carries what metrics and problems need to know about the request.
type response struct {
	http.ResponseWriter
	status    int           // 0: no header has been written yet
	requestID string        // "req_…"
	pattern   string        // of the route; "": none matched
	account   string        // id of the account that was charged; "": none
	caller    callerKey     // who is counted as having sent it
	token     string        // id of the token that it bore; "": none that is valid
	waited    time.Duration // for something to answer with, as the caller has asked

	refuse refusalForm // how refusals of the route's path are shown; nil: as problems (RFC 9457)
}

// WriteHeader implements http.ResponseWriter.
func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap returns the wrapped writer to http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// A reply is an answer as it is sent. A handler returns one where JSON with the status 200 is not enough.
type reply struct {
	status  int
	body    []byte
	headers []header // besides those that every answer has; Content-Type is application/json unless it is one of them
	tag     string   // ETag: a request whose If-None-Match names it is answered with 304; "": none
}

// A header is one line of an answer's header. Vary is added to what the answer has of it.
type header struct{ name, value string }

// A handler returns noContent for an answer without a body: 204.
var noContent = &reply{status: http.StatusNoContent}

// A refusalForm makes the answer to a refusal where that is no problem: a page for people, or what a standard other
// than RFC 9457 requires. requestID is for people who report a fault of the service.
type refusalForm func(r *http.Request, ref *refusal, requestID string) *reply

// htmlPage makes an answer that people read; policy is its Content-Security-Policy.
func htmlPage(status int, policy string, body []byte) *reply {
	return &reply{status: status, body: body, headers: []header{{"Content-Type", "text/html; charset=utf-8"},
		{"Content-Security-Policy", policy}, {"Referrer-Policy", pageReferrers}, {"X-Robots-Tag", "noindex"},
		{"Vary", "Accept-Language"}}}
}

// download makes an answer that browsers save as a file; name is the file's, in letters, digits and dots.
func download(contentType, name string, body []byte) *reply {
	return &reply{status: http.StatusOK, body: body, headers: []header{{"Content-Type", contentType},
		{"Content-Disposition", `attachment; filename="` + name + `"`},
		{"Content-Security-Policy", "default-src 'none'; sandbox"}, {"Referrer-Policy", pageReferrers},
		{"X-Robots-Tag", "noindex"}}}
}

// redirect sends the browser elsewhere with GET: 303. to is taken from the request only if it is registered;
// referrers is the Referrer-Policy: what the next site learns of where the browser was.
func redirect(to, referrers string) *reply {
	return &reply{status: http.StatusSeeOther, headers: []header{{"Location", to}, {"Referrer-Policy", referrers}}}
}

// seeOther is redirect within the service. The URL must not come from the request.
func seeOther(to string) *reply { return redirect(to, pageReferrers) }

// withCookie adds a cookie that the browser keeps.
func (a *reply) withCookie(c *http.Cookie) *reply {
	a.headers = append(a.headers, header{"Set-Cookie", c.String()})
	return a
}

// answer writes a handler's result: a *reply, a *staticFile, or any other value as JSON with status 200. Where there is
// no memory for an answer, it is refused if the call only reads.
func (s *server) answer(c *call, result any) {
	if c.core.route.answers.empty == http.StatusNoContent && !c.in.dry {
		result = noContent
	}
	var out *reply
	switch v := result.(type) {
	case *staticFile:
		s.sendStatic(c.response, c.request, v)
		return
	case *reply:
		out = v
	case jsonAppender:
		out = &reply{status: http.StatusOK, body: append(v.appendJSON(make([]byte, 0, 1024)), '\n')}
	default:
		out = &reply{status: http.StatusOK, body: encodeJSON(result)}
	}
	held := len(out.body)
	if held <= smallAnswer {
		held = 0
	}
	c.core.body, c.core.parsed = nil, jsonValue{}
	if err := c.core.held.set(int64(held)); err != nil && c.core.route.method() == http.MethodGet {
		s.fail(c.response, c.request, err)
		return
	}
	s.writeTagged(c.response, c.request, out)
}

// writeTagged is write, or 304 if the caller has the answer already.
func (s *server) writeTagged(w *response, r *http.Request, a *reply) {
	if a.tag != "" {
		w.Header().Set("ETag", a.tag)
		if etagMatches(r.Header.Values("If-None-Match"), a.tag) {
			s.write(w, reply{status: http.StatusNotModified, headers: slices.DeleteFunc(slices.Clone(a.headers),
				func(h header) bool { return h.name != "Cache-Control" && h.name != "Vary" })})
			return
		}
	}
	s.write(w, *a)
}

// write sends a reply. Its Content-Type is application/json unless one is set already.
// While the service stops, it also closes the connection.
func (s *server) write(w *response, out reply) {
	h := w.Header()
	for _, line := range out.headers {
		if line.name == "Vary" {
			h.Add(line.name, line.value)
		} else {
			h.Set(line.name, line.value)
		}
	}
	if s.draining.Load() {
		h.Set("Connection", "close")
	}
	if len(out.body) > 0 {
		if h["Content-Type"] == nil {
			h.Set("Content-Type", "application/json")
		}
		h.Set("Content-Length", strconv.Itoa(len(out.body)))
	}
	w.WriteHeader(out.status)
	w.Write(out.body) // fails only when the client has gone
}

// pageReferrers is the Referrer-Policy that keeps the URLs of pages, which may hold a key, from other sites.
const pageReferrers = "same-origin"

// etagMatches reports whether one of the values of If-None-Match is tag, by the weak
// comparison of RFC 9110, section 13.1.2.
func etagMatches(values []string, tag string) bool {
	return slices.ContainsFunc(strings.Split(strings.Join(values, ","), ","), func(candidate string) bool {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		return candidate == tag || candidate == "*"
	})
}

// A list is one page of a list of rows.
type list[T any] struct {
	Data       []T     `json:"data"`        // The rows.
	NextCursor *string `json:"next_cursor"` // The `cursor` of the next page, or null: this is the last.
}

// showPage makes the answer for a page of rows; show returns the element for a row.
func showPage[Row, T any](p listPage[Row], show func(Row) T) *list[T] {
	l := &list[T]{Data: []T{}, NextCursor: nilIfEmpty(p.next)}
	for _, row := range p.rows {
		l.Data = append(l.Data, show(row))
	}
	return l
}

// showRows is showPage for a query of rows that callers see as they are.
func showRows[T any](p listPage[T], err error) (*list[T], error) {
	return showPage(p, func(row T) T { return row }), err
}

// statusClientGone is the status that metrics and the access log record, as nginx does, for a request
// whose client went away before it was answered. It is never sent.
const statusClientGone = 499

// fail answers an error: with a problem (RFC 9457), on a path for people with a page, or in the form that the
// path has of its own. An error that is not a refusal becomes a 500 that gives no details, and one line in the
// log. A row that can't be read is named only to callers whose path has its id.
func (s *server) fail(writer http.ResponseWriter, r *http.Request, err error) {
	w := writer.(*response)
	var ref *refusal
	var row *unreadableRow
	switch {
	case errors.As(err, &row) && row.id != "" && slices.Contains(strings.Split(r.URL.Path, "/"), row.id):
		ref = &refusal{code: codeUnreadable, detail: "What the database holds of " + row.id + " can't be read. " +
			"The operator of the service finds out how to mend it with 'widgetd check'."}
	case !errors.As(err, &ref):
		ref = &refusal{code: codeInternal}
		if r.Context().Err() == nil {
			s.log.Error("internal error", "request_id", w.requestID, "route", w.pattern, "error", err.Error())
		} else { // the client has gone, which may have caused err
			w.status = statusClientGone
		}
	}
	if w.status != statusClientGone {
		s.noteRefusal(w, r, ref, err)
	}
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	if ref.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(wholeSeconds(ref.retryAfter)))
	}
	if l := ref.limit; l.name != "" {
		showLimit(h, l.name, l.rate, takeResult{remaining: l.remaining, full: l.full})
	}
	if ref.challenge != "" {
		challenge := ref.challenge
		if ref.code.status == http.StatusUnauthorized && strings.HasPrefix(challenge, bearerChallenge) {
			challenge += s.routing.Load().resource
		}
		h.Set("WWW-Authenticate", challenge)
	}
	if w.refuse != nil {
		s.write(w, *w.refuse(r, ref, w.requestID))
		return
	}
	h.Set("Content-Type", "application/problem+json")
	rt := s.routing.Load()
	path, _ := rt.inBase(r.URL.Path)
	s.write(w, reply{status: ref.code.status, body: ref.encode(rt.root, w.requestID, rt.members[path])})
}

// A taggedBody is the body of an answer and its ETag, quotes included.
type taggedBody struct {
	body []byte
	tag  string
}

// etag returns a strong validator of a body (RFC 9110, section 8.8.3).
func etag(body []byte) string {
	sum := sha256.Sum256(body)
	return `"` + hex.EncodeToString(sum[:12]) + `"`
}

// A staticFile is an answer that is made once and sent as it is, in the same bytes to everybody:
// the OpenAPI document, a page. It never changes once newStaticFile has made it.
type staticFile struct {
	contentType  string
	cacheControl string
	plain        taggedBody
	gzipped      func() taggedBody // with an ETag of its own (RFC 9110, section 8.8.3.3); no body: not worth it
}

// newStaticFile computes the ETag of a body. The body is compressed only once somebody asks for that, since a
// service makes several of these when it starts. cacheControl is sent as it is: "public, max-age=300".
func newStaticFile(contentType, cacheControl string, body []byte) *staticFile {
	return &staticFile{contentType: contentType, cacheControl: cacheControl, plain: taggedBody{body, etag(body)},
		gzipped: sync.OnceValue(func() taggedBody { return compress(body) })}
}

// compress returns a body compressed by gzip, or no body if that would not be smaller.
func compress(body []byte) taggedBody {
	var small bytes.Buffer
	z, _ := gzip.NewWriterLevel(&small, gzip.BestCompression) // fails only for a level that does not exist
	z.Write(body)                                             // a bytes.Buffer never fails
	z.Close()
	if small.Len() >= len(body) {
		return taggedBody{}
	}
	return taggedBody{small.Bytes(), etag(small.Bytes())}
}

// sendStatic answers GET and HEAD with a staticFile: compressed if the caller accepts that, and with
// 304 if it has the file already.
func (s *server) sendStatic(w *response, r *http.Request, f *staticFile) {
	h := w.Header()
	h.Set("Cache-Control", f.cacheControl)
	h.Add("Vary", "Accept-Encoding")
	chosen, compressed := f.plain, false
	if acceptsGzip(r.Header["Accept-Encoding"]) {
		if small := f.gzipped(); small.body != nil {
			chosen, compressed = small, true
		}
	}
	h.Set("ETag", chosen.tag)
	if etagMatches(r.Header["If-None-Match"], chosen.tag) {
		s.write(w, reply{status: http.StatusNotModified})
		return
	}
	h.Set("Content-Type", f.contentType)
	if compressed {
		h.Set("Content-Encoding", "gzip")
	}
	s.write(w, reply{status: http.StatusOK, body: chosen.body})
}

// acceptsGzip reports whether the values of Accept-Encoding allow gzip, by its name or by * (RFC
// 9110, section 12.5.3).
func acceptsGzip(values []string) bool {
	others := false
	for _, element := range strings.Split(strings.Join(values, ","), ",") {
		coding, params, _ := strings.Cut(element, ";")
		switch strings.ToLower(strings.TrimSpace(coding)) {
		case "gzip", "x-gzip":
			return weight(params) > 0
		case "*":
			others = weight(params) > 0
		}
	}
	return others
}

// weight returns the q of a content coding's parameters: "q=0.5". It is 1 if there is none, and 0
// if it can't be read.
func weight(params string) float64 {
	name, value, given := strings.Cut(strings.TrimSpace(params), "=")
	if !given {
		return 1
	}
	q, err := strconv.ParseFloat(value, 64)
	if !strings.EqualFold(name, "q") || err != nil || q > 1 {
		return 0
	}
	return q
}

// prefersStrict reports whether the values of Prefer ask for handling=strict (RFC 7240, section 4.4). Of a
// preference that is given twice, the first counts.
func prefersStrict(values []string) bool {
	for rest := strings.Join(values, ","); rest != ""; {
		var preference string
		preference, rest = cutUnquoted(rest, ',')
		preference, _ = cutUnquoted(preference, ';') // without its parameters
		name, value, _ := strings.Cut(preference, "=")
		if value = strings.Trim(value, " \t"); strings.EqualFold(strings.Trim(name, " \t"), "handling") {
			return strings.EqualFold(value, "strict") || strings.EqualFold(value, `"strict"`)
		}
	}
	return false
}

// cutUnquoted is strings.Cut at a byte outside quoted strings (RFC 9110, section 5.6.4).
func cutUnquoted(s string, separator byte) (before, after string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == separator && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// Idempotency-Keys (contract, section 1): the answer to a request that creates something is stored
// under the request's key, mostly for a day, and a repeated request gets it again.

// The problem codes of Idempotency-Keys.
var (
	idempotencyProblems problemTable

	codeMalformedHeader = idempotencyProblems.add(400, "malformed_header", "Malformed header",
		"The Idempotency-Key must be given once and have 1 to 255 visible ASCII characters.",
		"Send `Idempotency-Key` once, with 1 to 255 visible ASCII characters.")
	codeIdempotencyInProgress = idempotencyProblems.add(409, "idempotency_in_progress",
		"The same request is still running",
		"A request with this Idempotency-Key is still running; wait for its answer.",
		"Wait `Retry-After` seconds and send it again.")
	codeIdempotencyKeyReused = idempotencyProblems.add(422, "idempotency_key_reused",
		"Idempotency-Key reused",
		"This Idempotency-Key was already used with another body or path. Choose a new one for a new request.",
		"Take a new key for a new request.")
)

// readIdempotencyKey reads the Idempotency-Key of a request to a route that creates; other routes
// ignore the header. It is 1 to 255 visible ASCII characters, perhaps in double quotes, which are
// dropped. Errors: malformed_header.
func (c *call) readIdempotencyKey() error {
	values := c.request.Header.Values("Idempotency-Key")
	if !c.core.route.creates || len(values) == 0 {
		return nil
	}
	key := values[0]
	if len(key) >= 2 && key[0] == '"' && key[len(key)-1] == '"' {
		key = key[1 : len(key)-1]
	}
	if len(values) > 1 || key == "" || len(key) > 255 || strings.IndexFunc(key, isNotVisible) >= 0 {
		return &refusal{code: codeMalformedHeader}
	}
	c.core.idemKey = key
	return nil
}

// repeatAs has a call whose body is a text treated like one that came with an Idempotency-Key.
func (c *call) repeatAs(key, text string) { c.core.idemKey, c.core.body = key, []byte(text) }

// hasIdempotencyKey reports whether a call came with an Idempotency-Key.
func (c *call) hasIdempotencyKey() bool { return c.core.idemKey != "" }

// create runs f in a transaction. If the call has an Idempotency-Key, f's result is encrypted
// and stored in the same transaction for a day or route.repeatable. A repeated call within that time does not run f,
// unless c.stillTrue denies it: it sets c.replay to the stored answer, and returns a zero result
// that must be ignored.
// Errors of f are not stored. Errors: those of f and of update, idempotency_in_progress,
// idempotency_key_reused.
func create[Res any](
	ctx context.Context, s *server, c *call, f func(*tx) (Res, error),
) (res Res, err error) {
	if c.core.idemKey == "" || c.in.dry {
		return enact(ctx, s, c, f)
	}
	keys := s.keys.Load()
	id := keys.hash("idempotency scope", s.idempotencyCaller(c), c.core.route.pattern, c.core.idemKey)
	path, _ := s.routing.Load().inBase(c.request.URL.Path) // distinguishes what the route's wildcards match
	if account := c.in.query.Get("account_id"); account != "" {
		path += "?account_id=" + account
	}
	request := keys.hash("idempotency request", path, string(c.core.body))
	alone := ceiling[string]{string(id), 1}
	if s.running.add(1, alone) != nil {
		return res, &refusal{code: codeIdempotencyInProgress, retryAfter: time.Second}
	}
	defer s.running.add(-1, alone)
	err = s.store.update(ctx, func(t *tx) (err error) {
		if c.replay, err = c.earlierAnswer(t, keys, id, request); err != nil || c.replay != nil {
			return err
		}
		if res, err = f(t); err != nil {
			return err
		}
		var plain []byte // empty for an answer without a body (204)
		if any(res) != any(noContent) {
			plain = encodeJSON(res)
		}
		t.storeAnswer(id, storedAnswer{request: request, sealed: keys.seal(c.core.idemKey, plain)},
			cmp.Or(c.core.route.repeatable, 24*time.Hour))
		return nil
	})
	if err != nil {
		c.replay = nil
	}
	return res, err
}

// enact runs f in a transaction, and returns what f has returned. With ?dry_run=true the transaction is rolled back,
// so that nothing stays but the answer, and nobody is told of anything; what else a handler does, it leaves out then.
func enact[Res any](ctx context.Context, s *server, c *call, f func(*tx) (Res, error)) (res Res, err error) {
	err = s.store.update(ctx, func(t *tx) (err error) {
		if res, err = f(t); err != nil || !c.in.dry {
			return err
		}
		return cmp.Or(t.end(), errTried)
	})
	return res, except(err, errTried)
}

// errTried is the error of a transaction that only tells what it would do.
var errTried = errors.New("only tried")

// earlierAnswer returns the stored answer to an earlier call with the same Idempotency-Key, or nil
// if there was none or it is no longer true. id is the hash that the answer is stored under, request
// the hash of path and body. Errors: idempotency_key_reused, those of the store.
func (c *call) earlierAnswer(t *tx, keys *keyring, id, request []byte) (*reply, error) {
	stored, err := t.storedAnswer(id)
	switch {
	case errors.Is(err, errNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case !bytes.Equal(stored.request, request):
		return nil, &refusal{code: codeIdempotencyKeyReused}
	}
	plain, err := keys.unseal(c.core.idemKey, stored.sealed)
	if err != nil {
		return nil, fmt.Errorf("%w (decrypt a stored answer: %w)", errStorage, err)
	}
	if c.stillTrue != nil {
		if ok, err := c.stillTrue(t, plain); err != nil || !ok {
			return nil, err
		}
	}
	if len(plain) == 0 {
		return noContent, nil
	}
	return &reply{status: http.StatusOK, body: plain}, nil
}

// idempotencyCaller identifies the sender of an Idempotency-Key, so that two callers that choose
// the same key don't get each other's answers: by the token's account, and its application if it has one,
// else by licence and fingerprint (idemScope), else by the charged account and the client's address.
func (s *server) idempotencyCaller(c *call) string {
	switch {
	case c.caller != nil && c.caller.app != "":
		return "app " + c.caller.app + " " + c.caller.claims.Subject
	case c.caller != nil && !c.caller.claims.isDevice():
		return "account " + c.caller.claims.Subject
	case c.idemScope != "":
		return c.idemScope
	}
	return "address " + c.core.account + " " + s.address(c.request)
}

// replaysOf returns a call.stillTrue that gives the answer to an earlier call with the same Idempotency-Key only
// to a caller that acts on the rows of o: ?account_id= is not compared with that of the earlier call. allows gets
// the answer, decoded as T, and returns an error if the caller must not have it all the same: another token of
// the account may have fewer scopes.
func replaysOf[T any](o owner, allows func(made *T) error) func(*tx, []byte) (bool, error) {
	return func(_ *tx, answer []byte) (bool, error) {
		var made struct {
			AccountID string `json:"account_id"`
		}
		more := new(T)
		if err := cmp.Or(json.Unmarshal(answer, &made), json.Unmarshal(answer, more)); err != nil {
			return false, fmt.Errorf("decode a stored answer: %w", err)
		}
		if !o.owns(made.AccountID) {
			return false, &refusal{code: codeIdempotencyKeyReused}
		}
		return true, allows(more)
	}
}

// anyReplay is passed to replaysOf where every caller of the account may have the answer.
func anyReplay(*struct{}) error { return nil }
