package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/sha512"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
)

// The script that a page includes to show a widget, web/widget.js, and the line that includes it. The
// script carries the base address, so its hash is the installation's own.

// Beside the present script, web/ may have those that earlier releases had, as widget_2.js: pages name
// them by their hashes, and would stop counting if they went away.
//
//go:embed web/widget*.js
var scriptFiles embed.FS

const (
	scriptPath    = "/widget.js"
	scriptCaching = "public, max-age=3600"                // of the present script
	hashedCaching = "public, max-age=31536000, immutable" // of the paths with a hash
)

// A widgetScript is the script as it is served.
type widgetScript struct {
	path      string // at the root, with a part of the text's hash: another text has another path
	integrity string // the hash, as an attribute of the script element has it (W3C Subresource Integrity)
	text      []byte
}

// newWidgetScript makes the script from a source and a base address. The address needs no escaping in a
// JavaScript string (parseBaseURL).
func newWidgetScript(source []byte, base string) widgetScript {
	text := bytes.ReplaceAll(stripScript(source), []byte("{{base}}"), []byte(base))
	short, long := sha256.Sum256(text), sha512.Sum384(text)
	return widgetScript{path: "/widget-" + hex.EncodeToString(short[:6]) + ".js",
		integrity: "sha384-" + base64.StdEncoding.EncodeToString(long[:]), text: text}
}

// stripScript returns a script without its empty lines, its comment lines and its indentation. It does not
// understand comments after code, or strings over several lines: the source must have none.
func stripScript(source []byte) []byte {
	var stripped []byte
	for line := range bytes.Lines(source) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			stripped = append(append(stripped, line...), '\n')
		}
	}
	return stripped
}

// presentScript returns the script of this version for a base address.
func presentScript(base string) (widgetScript, error) {
	source, err := scriptFiles.ReadFile("web" + scriptPath)
	return newWidgetScript(source, base), err
}

// A scriptAPI serves the script: the present one at a path that never changes; and this one and earlier
// ones, each for every base address, at paths that contain their hashes.
type scriptAPI struct {
	*server
	files atomic.Pointer[map[string]*staticFile] // by path
}

func scriptModule(s *server) module {
	a := &scriptAPI{server: s}
	return module{roots: []rootPath{
		{path: scriptPath, more: a.prepare, open: true, page: true, serve: a.serveScript},
	}}
}

// prepare makes the scripts for the base addresses, the current one first, and returns the paths with
// hashes.
func (a *scriptAPI) prepare(bases []baseAddress) (paths []string, err error) {
	names, err := scriptFiles.ReadDir("web")
	if err != nil {
		return nil, err
	}
	const javaScript = "text/javascript; charset=utf-8"
	files := map[string]*staticFile{}
	for i, base := range bases {
		for _, name := range names {
			source, err := scriptFiles.ReadFile("web/" + name.Name())
			if err != nil {
				return nil, err
			}
			script := newWidgetScript(source, base.URL)
			files[script.path] = newStaticFile(javaScript, hashedCaching, script.text)
			paths = append(paths, script.path)
			if i == 0 && "/"+name.Name() == scriptPath {
				files[scriptPath] = newStaticFile(javaScript, scriptCaching, script.text)
			}
		}
	}
	a.files.Store(&files)
	return paths, nil
}

// serveScript sends the script of a path.
func (a *scriptAPI) serveScript(w *response, r *http.Request) {
	f := (*a.files.Load())[r.URL.Path]
	if f == nil { // the base addresses have just changed
		a.pathNotFound(w, r)
		return
	}
	w.Header().Set("Cross-Origin-Resource-Policy", "cross-origin") // pages with COEP require it of all they load
	a.sendStatic(w, r, f)
}

// A snippet is what a partner needs to put a widget into a page.
type snippet struct {
	Widget    string            `json:"widget"`
	HTML      string            `json:"html"`      // the line to paste
	Script    string            `json:"script"`    // the address in it
	Integrity string            `json:"integrity"` // hash of the script there
	Latest    string            `json:"latest"`    // the address of whatever script is the present one
	Policy    map[string]string `json:"csp"`       // what a Content-Security-Policy must allow, by directive
	Origins   []string          `json:"origins"`   // of the widget's account: the sites that may use it
}

// newSnippet makes the snippet of a widget for a base address.
func newSnippet(widgetID, base string) (*snippet, error) {
	script, err := presentScript(base)
	if err != nil {
		return nil, err
	}
	normal, prefix, err := parseBaseURL(base)
	if err != nil {
		return nil, err
	}
	root := strings.TrimSuffix(normal, prefix)
	return &snippet{
		Widget: widgetID,
		HTML: fmt.Sprintf(`<script async src="%s%s" data-widget="%s" integrity="%s" crossorigin="anonymous"></script>`,
			root, script.path, widgetID, script.integrity),
		Script: root + script.path, Integrity: script.integrity, Latest: root + scriptPath,
		Policy:  map[string]string{"script-src": root, "connect-src": root, "img-src": root},
		Origins: []string{},
	}, nil
}

// text returns the line with comments, all of which can be pasted into a page.
func (s *snippet) text() string {
	return strings.NewReplacer("{html}", s.HTML, "{latest}", s.Latest, "{root}", s.Policy["script-src"]).Replace(
		`<!-- The widget. Where a Content-Security-Policy is sent, it must have:
     script-src {root}; connect-src {root}; img-src {root}
     This line always loads the same script. For one that changes with the service, use
     {latest} without integrity. -->
{html}`)
}

// widgetSnippet prints what a partner pastes into a page.
func widgetSnippet(e *env) error {
	return e.asOperator(nil, func(o *routeCaller) error {
		st := o.server.store
		w, err := st.widget(e.args[0])
		if err != nil {
			return err
		}
		s, err := newSnippet(w.ID, o.server.routing.Load().bases[0].URL)
		if err != nil {
			return err
		}
		origins, err := st.origins(ownedBy(w.AccountID))
		if err != nil {
			return err
		}
		for _, o := range origins {
			s.Origins = append(s.Origins, o.Origin)
		}
		if len(s.Origins) == 0 {
			owner, err := st.accountWord(w.AccountID)
			if err != nil {
				return err
			}
			e.note("no site may use this widget yet: add the site's origin with "+
				"'widgetd origin add https://www.example.com -account %s'\n", owner)
		}
		return e.printAsIs(s, s.text())
	})
}
