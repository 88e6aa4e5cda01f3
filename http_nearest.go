package main

import (
	"slices"
	"strings"
)

// Who asks for a path that does not exist is told which one was probably meant. Only our own table is
// answered, nothing of the request, and the work is bounded: long paths are not looked at.

const (
	maxGuessedPath     = 128 // bytes of a path that is looked at
	maxGuessedSegments = 8
	maxGuessedEdits    = 2 // letters and segments that may differ, in all
)

// A knownPath is a path that the service answers, cut into segments.
type knownPath struct {
	full     string   // as it is answered: "/v1/licenses/{id}/devices"
	segments []string // without the path of the base address: "licenses", "{id}", "devices"
	methods  []string
}

// know adds a path to those that nearest can name. p is the same without the path of the base address, if it has
// that.
func (rt *routing) know(full, p string, methods []string) {
	rt.known = append(rt.known, knownPath{full, pathSegments(p), methods})
}

// nearest returns the path that a request for p probably meant, as the route table writes it, or ""
// when none is near. It finds a path whose base address is missing, wrong or given twice, one with a
// slash too many, in another case, without its first or its last part, or with up to two wrong letters.
func (rt *routing) nearest(method, p string) string {
	if len(p) > maxGuessedPath {
		return ""
	}
	asked := pathSegments(strings.ToLower(p))
	if len(asked) == 0 || len(asked) > maxGuessedSegments {
		return ""
	}
	for _, prefix := range rt.prefixes {
		base := pathSegments(strings.ToLower(prefix))
		for len(asked) > len(base) && slices.Equal(asked[:len(base)], base) {
			asked = asked[len(base):]
		}
	}
	found, least := "", maxGuessedEdits+2
	for i := range rt.known {
		k := &rt.known[i]
		edits := pathDistance(asked, k.segments)
		if edits > maxGuessedEdits {
			continue
		}
		if !slices.Contains(k.methods, method) {
			edits++ // another path that takes the method is meant, if it is as near
		}
		if edits < least {
			found, least = k.full, edits
		}
	}
	return found
}

// pathSegments returns the parts of a path between its slashes, without empty ones.
func pathSegments(p string) []string {
	return strings.FieldsFunc(p, func(r rune) bool { return r == '/' })
}

// pathDistance returns how many letters and leading segments differ between a request's segments and
// a known path's; more than maxGuessedEdits means that nothing of them is alike.
func pathDistance(asked, known []string) int {
	shared := min(len(asked), len(known))
	if shared == 0 {
		return maxGuessedEdits + 1
	}
	edits := max(len(asked), len(known)) - shared
	asked, known = asked[len(asked)-shared:], known[len(known)-shared:]
	literal := false
	for i := 0; i < shared && edits <= maxGuessedEdits; i++ {
		if !strings.HasPrefix(known[i], "{") {
			literal = true
			edits += segmentDistance(asked[i], known[i])
		}
	}
	if !literal {
		return maxGuessedEdits + 1
	}
	return edits
}

// segmentDistance returns how many letters must be inserted, removed or replaced to make one segment
// of the other, at most maxGuessedEdits + 1. The beginning of a segment, as "jwks" for "jwks.json",
// counts as one letter off. A segment of up to four letters may have one wrong.
func segmentDistance(asked, known string) int {
	const far = maxGuessedEdits + 1
	if asked == known {
		return 0
	}
	if len(asked) >= 3 && strings.HasPrefix(known, asked) {
		return 1
	}
	if len(asked) > len(known)+maxGuessedEdits || len(known) > len(asked)+maxGuessedEdits {
		return far
	}
	row := make([]int, len(known)+1) // of the table of distances between beginnings (Levenshtein)
	for j := range row {
		row[j] = j
	}
	for i := range len(asked) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(known) {
			replaced := diagonal
			if asked[i] != known[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	edits := row[len(known)]
	if edits > 1 && len(known) < 5 {
		return far
	}
	return min(edits, far)
}
