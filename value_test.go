package main

import (
	"bytes"
	"compress/gzip"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// writeEmbedded compresses what the program embeds compressed, after a change of it:
//
//	go test -run TestEmbedded -write-embedded .
var writeEmbedded = flag.Bool("write-embedded", false, "write the compressed copies of what the program embeds")

// embeddedSources are the files of which the program has a compressed copy: schema.sql, all of schema, CHANGELOG.md,
// and all of web but the script, which every start needs.
func embeddedSources(t testing.TB) (names []string) {
	t.Helper()
	for _, pattern := range []string{"schema.sql", "schema/*", "web/*", "CHANGELOG.md"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		names = append(names, found...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "web/widget") })
}

func TestEmbedded_isWhatItsSourcesAre(t *testing.T) {
	t.Parallel()
	sources := embeddedSources(t)
	if *writeEmbedded {
		for _, name := range sources {
			var small bytes.Buffer
			z, err := gzip.NewWriterLevel(&small, gzip.BestCompression) // without a time or a name, so always the same
			must(t, err)
			_, err = z.Write(fileBytes(t, name))
			must(t, err)
			must(t, z.Close())
			must(t, os.WriteFile("compressed/"+name+".gz", small.Bytes(), 0o644))
		}
		t.Skip("written; build the test anew to check it")
	}
	err := fs.WalkDir(compressedFiles, ".", func(name string, d fs.DirEntry, err error) error {
		source := strings.TrimSuffix(strings.TrimPrefix(name, "compressed/"), ".gz")
		if !d.IsDir() && !slices.Contains(sources, source) {
			t.Errorf("%s is a copy of nothing that is embedded", name)
		}
		return err
	})
	must(t, err)
	for _, name := range sources {
		_, err := compressedFiles.Open("compressed/" + name + ".gz")
		if err != nil || embedded(name) != fileText(t, name) {
			t.Errorf("%s has changed: go test -run TestEmbedded -write-embedded .", name)
		}
	}
	if len(sources) < 20 {
		t.Errorf("found %d files only", len(sources))
	}
}
