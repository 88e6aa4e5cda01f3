package main

import (
	"context"
	_ "embed"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
)

// The OpenAPI document (contract, section 9). It is written by hand; openapi_test.go holds it
// against the routes, the problem codes and every answer that a test gets.

//go:embed web/openapi.json
var openapiText string

// The addresses that the document is written with, in its servers, its examples and the paths of the metadata. It
// is served with the configured ones in their place.
const (
	documentBase = "https://api.example.com/v1"
	documentRoot = "https://api.example.com"
	documentPath = "/v1"
)

// An openapiAPI serves the OpenAPI document.
type openapiAPI struct {
	*server
	making sync.Mutex
	made   atomic.Pointer[openapiFile]
}

// An openapiFile is the document with the base address that the service had when it was made.
type openapiFile struct {
	base string
	*staticFile
}

func openapiWing(s *server) wing {
	a := &openapiAPI{server: s}
	return wing{
		routes: []route{{pattern: "GET /openapi.json", free: true, open: true, run: endpoint(a.showDocument)}},
		roots: []rootPath{{path: "/openapi.json", open: true, serve: func(w *response, r *http.Request) {
			a.sendStatic(w, r, a.document())
		}}},
	}
}

// showDocument answers GET /openapi.json below the base address.
func (a *openapiAPI) showDocument(context.Context, *call, *emptyRequest) (*staticFile, error) {
	return a.document(), nil
}

// document returns the document with the current base address. It is made, and compressed, when it
// is asked for first and after the base address was changed.
func (a *openapiAPI) document() *staticFile {
	rt := a.routing.Load()
	base := rt.bases[0].URL
	if made := a.made.Load(); made != nil && made.base == base {
		return made.staticFile
	}
	a.making.Lock()
	defer a.making.Unlock()
	if made := a.made.Load(); made != nil && made.base == base { // made while this call waited
		return made.staticFile
	}
	text := strings.NewReplacer(documentBase, base, documentRoot, rt.root,
		serverMetadataPath+documentPath, serverMetadataPath+rt.prefixes[0],
		resourceMetadataPath+documentPath, resourceMetadataPath+rt.prefixes[0]).Replace(openapiText)
	made := &openapiFile{base, newStaticFile("application/json", "public, max-age=300", []byte(text))}
	a.made.Store(made)
	return made.staticFile
}
