package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// How much memory bodies may take, whoever sends them: while they are parsed, until their members are read; and
// while those are received that may be larger than maxBody.
const (
	parseMemory   = 16 << 20
	receiveMemory = 32 << 20
)

// readBody reads and parses the body. It refuses a wrong type (415), size (413) or syntax (400).
// On a route whose members may all be absent it reads an empty body of any type as {}. It returns nil on
// a route that takes its body as it is.
func (s *server) readBody(w http.ResponseWriter, c *call) (*jsonValue, error) {
	r := c.request
	if c.route.noBody && r.ContentLength == 0 {
		c.body, c.parsed = []byte("{}"), jsonValue{kind: jsonObject}
		return &c.parsed, nil
	}
	// Several lines of a header mean the same as a list, which neither of these may be.
	kind := strings.Join(r.Header["Content-Type"], ", ")
	coding := strings.Join(r.Header["Content-Encoding"], ", ")
	plain := slices.Contains([]string{"", "identity"}, strings.ToLower(coding))
	if !c.route.raw && !(plain && c.acceptsContentType(kind)) {
		w.Header().Set("Accept", c.route.bodyType())
		return nil, &refusal{code: codeMediaType}
	}
	limit := c.route.bodyLimit()
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // else net/http would read the body before it answers
		return nil, errBodySize(limit)
	}
	body, err := s.receive(w, c, limit)
	if err != nil {
		return nil, err
	}
	c.body = body
	switch {
	case c.route.raw:
		return nil, nil
	case c.route.takesForm():
		c.parsed, err = parseForm(body)
		return &c.parsed, err
	}
	return s.parseBody(c)
}

// receive reads the bytes of a body. Those of a route that takes large ones are read for so many callers at a time
// only. Errors: a refusal (413, 400), errManyBodies.
func (s *server) receive(w http.ResponseWriter, c *call, limit int64) ([]byte, error) {
	if limit > maxBody && !c.route.raw {
		release, err := s.receiving.take(c.request.Context(), c.payer(), limit)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	body, err := readAll(w, c.request, limit)
	if err == nil {
		return body, nil
	}
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, errBodySize(limit)
	}
	return nil, &refusal{code: codeMalformedJSON, detail: "The body ended early."}
}

// parseBody parses the body of a call, and takes the memory for it from the budget, until dropParsed gives it back.
// Errors: a refusal (400), errManyBodies.
func (s *server) parseBody(c *call) (_ *jsonValue, err error) {
	most := cmp.Or(c.route.values, maxBodyValues)
	values := min(int64(most), int64(len(c.body)/2+1)) // each takes two bytes at least: "1,"
	memory := 2*int64(len(c.body)) + values*memberMemory
	if c.free, err = s.parsing.take(c.request.Context(), c.payer(), memory); err != nil {
		return nil, err
	}
	if c.parsed, err = parseBody(c.body, most); err != nil {
		return nil, &refusal{code: codeMalformedJSON, detail: "The body can't be read: " + err.Error() + "."}
	}
	return &c.parsed, nil
}

// dropParsed drops the parsed body once its members are read, and gives back the memory that it took.
func (c *call) dropParsed() {
	if c.free != nil {
		c.parsed = jsonValue{}
		c.free()
	}
}

// payer returns the account of the call's token, whose part of a memoryBudget the call takes from; "": none.
func (c *call) payer() string {
	if c.caller == nil {
		return ""
	}
	return c.caller.claims.Subject
}

// takesForm reports whether bodies are forms.
func (rt *route) takesForm() bool { return rt.form || rt.page != nil }

// formMediaType is the Content-Type of forms.
const formMediaType = "application/x-www-form-urlencoded"

// bodyType returns the Content-Type of bodies.
func (rt *route) bodyType() string {
	if rt.takesForm() {
		return formMediaType
	}
	return "application/json"
}

// acceptsContentType reports whether a Content-Type is the route's, in UTF-8, or for a beacon plain
// text in UTF-8.
func (c *call) acceptsContentType(contentType string) bool {
	want := c.route.bodyType()
	if contentType == want { // the common case
		return true
	}
	kind, params, err := mime.ParseMediaType(contentType)
	charset, hasCharset := params["charset"]
	return err == nil && (kind == want || kind == "text/plain" && c.route.beacon) &&
		(!hasCharset || strings.EqualFold(charset, "utf-8"))
}

// readAll reads a body of at most limit bytes. With a Content-Length, which the caller has
// compared with the limit, that takes one allocation.
func readAll(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

func errBodySize(limit int64) error {
	return &refusal{code: codeBodySize, detail: fmt.Sprintf("The body has more than %d KiB.", limit>>10)}
}
