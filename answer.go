package main

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// A response is the writer of one answer: it remembers what became of it, and
// what the wrapper found out on the way.
type response struct {
	http.ResponseWriter
	status    int
	requestID string
	pattern   string
	account   string // who was charged; "": nobody

	values [6]string // of header fields, which need no slices of their own here
	fields int       // how many of them are taken
}

// put sets a header field, whose name is in its canonical form.
func (w *response) put(name, value string) {
	if w.fields == len(w.values) {
		w.Header()[name] = []string{value}
		return
	}
	i := w.fields
	w.values[i] = value
	w.Header()[name] = w.values[i : i+1 : i+1]
	w.fields++
}

func (w *response) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap serves http.ResponseController.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// What nearly every answer carries, made once. Nobody writes into these.
var (
	headerNosniff = []string{"nosniff"}
	headerNoStore = []string{"no-store"}
	headerVary    = []string{"Origin"}
	headerJSON    = []string{"application/json"}

	headerVaryCaller = []string{"Origin", "Authorization"}
)

// A reply is an answer as it goes out.
type reply struct {
	status int
	body   []byte
}

// noContent is the answer 204.
type noContent struct{}

// A document is an answer with a status and a Content-Type of its own.
type document struct {
	status      int
	contentType string
	content     any
}

// A cacheable is an answer with an ETag, which If-None-Match may spare.
type cacheable struct {
	taggedBody
	cacheControl string
}

// answer writes a handler's result.
func (s *server) answer(w *response, r *http.Request, result any) {
	switch v := result.(type) {
	case noContent:
		s.write(w, reply{status: http.StatusNoContent})
		return
	case *document:
		w.Header().Set("Content-Type", v.contentType)
		s.write(w, reply{v.status, encodeJSON(v.content)})
		return
	case *cacheable:
		w.put("Etag", v.tag)
		w.put("Cache-Control", v.cacheControl)
		w.Header()["Vary"] = headerVaryCaller
		if etagMatches(r.Header.Values("If-None-Match"), v.tag) {
			s.write(w, reply{status: http.StatusNotModified})
			return
		}
		s.write(w, reply{http.StatusOK, v.body})
		return
	case jsonAppender:
		buffer := answerBuffers.Get().(*[]byte)
		*buffer = append(v.appendJSON((*buffer)[:0]), '\n')
		s.write(w, reply{http.StatusOK, *buffer})
		answerBuffers.Put(buffer)
		return
	}
	s.write(w, reply{http.StatusOK, encodeJSON(result)})
}

// answerBuffers hold answers while they are written.
var answerBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 2048); return &b }}

// write sends a reply, as JSON unless the writer has another Content-Type already.
func (s *server) write(w *response, out reply) {
	h := w.Header()
	if s.draining.Load() {
		h.Set("Connection", "close")
	}
	if len(out.body) > 0 {
		if h["Content-Type"] == nil {
			h["Content-Type"] = headerJSON
		}
		w.put("Content-Length", strconv.Itoa(len(out.body)))
	}
	w.WriteHeader(out.status)
	w.Write(out.body) // an error here is the caller's absence
}

// etagMatches judges If-None-Match (RFC 9110, section 13.1.2: weakly).
func etagMatches(values []string, tag string) bool {
	for _, candidate := range strings.Split(strings.Join(values, ","), ",") {
		candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/")
		if candidate == tag || candidate == "*" {
			return true
		}
	}
	return false
}

// A list is a page of rows and the cursor of the next one.
type list[T any] struct {
	Data       []T     `json:"data"`
	NextCursor *string `json:"next_cursor"`
}

// newList cuts a page out of rows, of which one more than the limit was asked for.
func newList[Row, T any](rows []Row, p pageQuery, id func(Row) string, show func(Row) T) *list[T] {
	l := &list[T]{Data: []T{}}
	if len(rows) > p.limit {
		rows = rows[:p.limit]
		last := id(rows[len(rows)-1])
		l.NextCursor = &last
	}
	for _, row := range rows {
		l.Data = append(l.Data, show(row))
	}
	return l
}

// fail writes the problem that an error is (RFC 9457). What is no refusal is a 500
// without detail and one log line.
func (s *server) fail(writer http.ResponseWriter, r *http.Request, err error) {
	w := writer.(*response)
	var ref *refusal
	if !errors.As(err, &ref) {
		ref = &refusal{code: codeInternal}
		if r.Context().Err() == nil { // else the caller has gone, and nobody reads this
			s.log.Error("internal error", "request_id", w.requestID, "route", w.pattern, "error", err.Error())
		}
	}
	if ref.code.status == http.StatusServiceUnavailable && error(ref) != err {
		s.log.Warn("storage", "request_id", w.requestID, "route", w.pattern, "error", err.Error())
	}
	h := w.Header()
	h.Set("Content-Type", "application/problem+json")
	h.Set("Cache-Control", "no-store")
	if ref.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(wholeSeconds(ref.retryAfter)))
	}
	if ref.challenge != "" {
		h.Set("WWW-Authenticate", ref.challenge)
	}
	rt := s.routing.Load()
	path, _ := rt.inBase(r.URL.Path)
	s.write(w, reply{ref.code.status, ref.encode(rt.root, w.requestID, rt.members[path])})
}

// A taggedBody is an encoded answer and its ETag.
type taggedBody struct {
	body []byte
	tag  string
}
