package main

import (
	"bytes"
	"compress/flate"
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

// embeddedTexts are the texts of which the program has a compressed copy, by their names: schema.sql, all of schema,
// all of web but the script, which every start needs, and what the pages of the documentation are made of; and those
// pages.
func embeddedTexts(t testing.TB) map[string]string {
	t.Helper()
	texts := makeDocs(t)
	for _, pattern := range []string{"schema.sql", "schema/*", "web/*"} {
		found, err := filepath.Glob(pattern)
		must(t, err)
		for _, name := range found {
			sample := slices.Contains([]string{".sh", ".py", ".mjs", ".md"}, filepath.Ext(name)) ||
				strings.HasSuffix(name, ".txt") && name != "web/demo.txt"
			if !sample && !strings.HasPrefix(name, "web/widget") && name != "web/docs.html" {
				texts[name] = fileText(t, name)
			}
		}
	}
	return texts
}

func TestEmbedded_isWhatItsSourcesAre(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	texts := embeddedTexts(t)
	if *writeEmbedded {
		must(t, os.RemoveAll("compressed"))
		for name, text := range texts {
			var small bytes.Buffer
			dictionary := dictionaryOf(name, func(other string) string { return texts[other] })
			z, err := flate.NewWriterDict(&small, flate.BestCompression, dictionary)
			must(t, err)
			_, err = z.Write([]byte(text))
			must(t, err)
			must(t, z.Close())
			name = "compressed/" + name + ".deflate"
			must(t, os.MkdirAll(filepath.Dir(name), 0o755))
			must(t, os.WriteFile(name, small.Bytes(), 0o644))
		}
		t.Skip("written; build the test anew to check it")
	}
	err := fs.WalkDir(compressedFiles, ".", func(name string, d fs.DirEntry, err error) error {
		source := strings.TrimSuffix(strings.TrimPrefix(name, "compressed/"), ".deflate")
		if _, known := texts[source]; !d.IsDir() && !known {
			t.Errorf("%s is a copy of nothing that is embedded", name)
		}
		return err
	})
	must(t, err)
	for name, text := range texts {
		_, err := compressedFiles.Open("compressed/" + name + ".deflate")
		if err != nil || embedded(name) != text {
			t.Errorf("%s has changed: go test -run TestEmbedded -write-embedded .", name)
		}
	}
	if len(texts) < 20 {
		t.Errorf("found %d files only", len(texts))
	}
}
