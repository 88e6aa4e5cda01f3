package main

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// A staticFile is an answer that is made once and sent as it is, in the same bytes to everybody:
// the OpenAPI document, a page. It never changes once newStaticFile has made it.
type staticFile struct {
	contentType  string
	cacheControl string
	plain        taggedBody
	gzipped      func() taggedBody // with an ETag of its own (RFC 9110, section 8.8.3.3); no body: not worth it
}

// newStaticFile computes the ETag of a body. It is compressed when somebody first asks for that: a service
// makes several of these at its start. cacheControl is sent as it is: "public, max-age=300".
func newStaticFile(contentType, cacheControl string, body []byte) *staticFile {
	return &staticFile{contentType: contentType, cacheControl: cacheControl, plain: taggedBody{body, etag(body)},
		gzipped: sync.OnceValue(func() taggedBody { return compress(body) })}
}

// compress returns a body compressed by gzip; none if that would not be smaller.
func compress(body []byte) taggedBody {
	var small bytes.Buffer
	z, _ := gzip.NewWriterLevel(&small, gzip.BestCompression) // fails only for a level that does not exist
	z.Write(body)                                             // a bytes.Buffer takes everything
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
	s.write(w, reply{http.StatusOK, chosen.body})
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
