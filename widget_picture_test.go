package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pictureOf returns the picture of a series of views from 2026-01-01 on, and its texts in the order of
// the document.
func pictureOf(t testing.TB, lang pageLanguage, name, interval string, days int, views ...int64) (
	picture string, texts []string) {
	t.Helper()
	first := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	r := statsRange{first, first.AddDate(0, 0, days-1), statsInterval(interval), time.UTC}
	s := newSeries(r)
	for i := range s.points {
		s.points[i].Views = views[i%len(views)]
		s.totals.Views += s.points[i].Views
	}
	report := r.report(s)
	report.widget = &widget{ID: "wgt_x", Name: name}
	picture = string(report.picture(lang))
	decoder, tags := xml.NewDecoder(strings.NewReader(picture)), []string{}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return picture, texts
		}
		if err != nil {
			t.Fatalf("the picture is no XML: %v\n%s", err, picture)
		}
		switch token := token.(type) {
		case xml.StartElement:
			tags = append(tags, token.Name.Local)
			contains(t, " svg title desc style rect text path ", " "+token.Name.Local+" ")
			for _, a := range token.Attr {
				if strings.HasPrefix(a.Name.Local, "on") || a.Name.Local == "href" {
					t.Errorf("the picture has an attribute %s", a.Name.Local)
				}
			}
		case xml.EndElement:
			tags = tags[:len(tags)-1]
		case xml.CharData:
			if tag := tags; len(tag) > 0 && tag[len(tag)-1] != "style" {
				texts = append(texts, string(token))
			}
		}
	}
}

// wordsOf returns the texts of a picture in one line, with plain spaces.
func wordsOf(texts []string) string {
	return strings.TrimSuffix(plainSpaces(strings.Join(texts, "|")), "|\n")
}

// TestPicture_isInEveryLanguage draws a day, weeks, months and nothing.
func TestPicture_isInEveryLanguage(t *testing.T) {
	t.Parallel()
	for lang, want := range map[pageLanguage][]string{
		"en": {"On 1 January 2026 (UTC): 1 view",
			"The busiest week was that of 29 December 2025, with 1,200 views.",
			"The busiest month was February 2026, with 1 view.", "1 Jan", "No views yet"},
		"de": {"Am 1. Januar 2026 (UTC): 1 Aufruf",
			"Die meisten Aufrufe gab es in der Woche ab dem 29. Dezember 2025: 1.200 Aufrufe.",
			"Die meisten Aufrufe gab es im Februar 2026: 1 Aufruf.", "1. Jan.", "Noch keine Aufrufe"},
		"fr": {"Le 1er janvier 2026 (UTC) : 1 vue",
			"La semaine la plus consultée est celle du 29 décembre 2025, avec 1_200 vues.",
			"Le mois le plus consulté est février 2026, avec 1 vue.", "1er janv.", "Pas encore de vues"},
		"it": {"Il giorno 1º gennaio 2026 (UTC): 1 visualizzazione",
			"La settimana con più visualizzazioni: quella dal giorno 29 dicembre 2025, con 1.200 visualizzazioni.",
			"Il mese con più visualizzazioni: febbraio 2026, con 1 visualizzazione.", "1º gen",
			"Ancora nessuna visualizzazione"},
		"nb": {"Den 1. januar 2026 (UTC): 1 visning",
			"Flest visninger var det i uken fra 29. desember 2025: 1 200 visninger.",
			"Flest visninger var det i februar 2026: 1 visning.", "1. jan.", "Ingen visninger ennå"},
		"sv": {"Den 1 januari 2026 (UTC): 1 visning",
			"Flest visningar var det under veckan från den 29 december 2025: 1 200 visningar.",
			"Flest visningar var det i februari 2026: 1 visning.", "1 jan.", "Inga visningar än"},
		"da": {"Den 1. januar 2026 (UTC): 1 visning",
			"Flest visninger var der i ugen fra den 29. december 2025: 1.200 visninger.",
			"Flest visninger var der i februar 2026: 1 visning.", "1. jan.", "Ingen visninger endnu"},
		"fi": {"1. tammikuuta 2026 (UTC): 1 katselu",
			"Vilkkain viikko alkoi 29. joulukuuta 2025: 1 200 katselua.",
			"Vilkkain kuukausi alkoi 1. helmikuuta 2026: 1 katselu.", "1. tammi", "Ei vielä katseluja"},
	} {
		picture, day := pictureOf(t, lang, "Lunch", "day", 1, 1)
		_, weeks := pictureOf(t, lang, "Lunch", "week", 14, 1200, 7, 2)
		_, months := pictureOf(t, lang, "Lunch", "month", 60, 0, 1)
		_, none := pictureOf(t, lang, "Lunch", "day", 30, 0)
		contains(t, picture, ` lang="`+string(lang)+`"`)
		if !strings.HasPrefix(wordsOf(day[1:2]), want[0]) || !strings.HasSuffix(wordsOf(weeks[1:2]), " "+want[1]) ||
			!strings.HasSuffix(wordsOf(months[1:2]), " "+want[2]) {
			t.Errorf("%s: %q %q %q", lang, day[1], weeks[1], months[1])
		}
		equal(t, string(lang), []string{wordsOf(weeks[4:5]), wordsOf(none[2:3])}, want[3:])
	}
	_, none := pictureOf(t, "en", "Lunch", "day", 30, 0)
	equal(t, "of nothing", wordsOf(none[:2]), "Lunch: no views yet|From 1 January 2026 to 30 January 2026 (UTC): "+
		"0 views, 0 visitors, 0 clicks, 0 orders.")
	equal(t, "no order in French", amount("fr", 0, "order")+amount("de", 0, "order"), "0 commande0 Bestellungen")
}

var aBar = regexp.MustCompile(`M([\d.]+) 158v-([\d.]+)h([\d.]+)v([\d.]+)z`)

// FuzzPicture draws any counts under any name: the picture is XML with the bars inside it, and the name
// is a text.
func FuzzPicture(f *testing.F) {
	f.Add("Lunch", 30, int64(1), int64(2), int64(0))
	f.Add(`</title><script>alert(1)</script>`, 366, int64(0), int64(0), int64(0))
	f.Add("a\x00\x1b\ufffe\xff]]>&amp;\"'", 1, int64(math.MaxInt64), int64(1), int64(-5))
	f.Add("", 7, int64(math.MinInt64), int64(-1), int64(math.MaxInt64))
	f.Add("0", 30, int64(1), int64(23), int64(0))
	f.Fuzz(func(t *testing.T, name string, days int, a, b, c int64) {
		days = 1 + int(uint(days)%maxStatsDays)
		picture, texts := pictureOf(t, pageLanguages[days%len(pageLanguages)], name, "day", days, a, b, c)
		if title := plainSpaces(texts[0]); !strings.Contains(title, ": ") || strings.Contains(picture, "<script") {
			t.Errorf("title %q", title)
		}
		bars, drawn := aBar.FindAllStringSubmatch(picture, -1), 0
		for i := range days {
			if []int64{a, b, c}[i%3] > 0 {
				drawn++
			}
		}
		if len(bars) != drawn || strings.Count(picture, "z") < drawn {
			t.Errorf("%d bars, want %d:\n%s", len(bars), drawn, picture)
		}
		end := 0.0
		for _, bar := range bars {
			var x, up, width, down float64
			fmt.Sscan(strings.Join(bar[1:], " "), &x, &up, &width, &down)
			outside := x < pictureMargin || x < end-0.02 || x+width > pictureWidth-pictureMargin+0.02
			if outside || up != down || up < 1 || up > barsBottom-barsTop {
				t.Errorf("a bar %s after one that ends at %v", bar[0], end)
			}
			end = x + width
		}
	})
}
