package main

import (
	"errors"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

func checkPage(s string) (code, detail string) {
	if !strings.HasPrefix(s, "/") {
		return "invalid_page", "A page is a path: it begins with /."
	}
	return "", ""
}

// parseOrigin returns an origin in its normal form (RFC 6454): scheme and host in lower case,
// without a default port. Anything but one http or https origin is an error, "null" too.
func parseOrigin(s string) (string, error) {
	err := errors.New("an origin is a scheme and a host, such as https://www.example.com, without a path")
	scheme, host, ok := strings.Cut(strings.ToLower(s), "://")
	if len(s) > 255 || !ok || scheme != "http" && scheme != "https" {
		return "", err
	}
	host, port, ok := cutPort(host)
	if !ok {
		return "", err
	}
	if v6, ok := strings.CutPrefix(host, "["); ok {
		addr, bad := netip.ParseAddr(strings.TrimSuffix(v6, "]"))
		if bad != nil || !strings.HasSuffix(host, "]") || !addr.Is6() || addr.Zone() != "" {
			return "", err
		}
		host = "[" + addr.String() + "]"
	} else if !validHost(host) {
		return "", err
	}
	if port == "" || scheme == "http" && port == "80" || scheme == "https" && port == "443" {
		return scheme + "://" + host, nil
	}
	return scheme + "://" + host + ":" + port, nil
}

// validHost reports whether host is a host name as browsers send it in an Origin: labels of
// lower-case ASCII letters, digits, hyphens and underscores, separated by dots.
func validHost(host string) bool {
	return !slices.ContainsFunc(strings.Split(host, "."), func(label string) bool {
		return label == "" || strings.Trim(label, hostSymbols) != ""
	})
}

// asciiHost returns a host name, with or without a port, in the form that browsers send: labels
// with other letters than ASCII's are in Punycode, after xn-- (RFC 5891, section 4.4). It reports
// false for a name with combining marks, which would first have to be composed with their letters.
func asciiHost(host string) (string, bool) {
	labels := strings.Split(strings.ToLower(host), ".")
	for i, label := range labels {
		name, port, hasPort := strings.Cut(label, ":")
		if strings.IndexFunc(name, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
			continue
		}
		if !utf8.ValidString(name) || strings.IndexFunc(name, unicode.IsMark) >= 0 {
			return "", false
		}
		labels[i] = "xn--" + punycode(name)
		if hasPort {
			labels[i] += ":" + port
		}
	}
	return strings.Join(labels, "."), true
}

// punycode encodes a text as RFC 3492, section 6.3, does: its ASCII characters and a hyphen, then
// for each other character, in order of value, how far it is from the one before it.
func punycode(s string) string {
	const base, tmin, tmax, initialBias, initialN = 36, 1, 26, 72, 128
	text, out := []rune(s), []byte{}
	for _, r := range text {
		if r < utf8.RuneSelf {
			out = append(out, byte(r))
		}
	}
	handled := len(out)
	basic := handled
	if basic > 0 {
		out = append(out, '-')
	}
	n, delta, bias := rune(initialN), 0, initialBias
	for handled < len(text) {
		next := rune(unicode.MaxRune)
		for _, r := range text {
			if r >= n {
				next = min(next, r)
			}
		}
		delta += int(next-n) * (handled + 1)
		n = next
		for _, r := range text {
			if r < n {
				delta++
			}
			if r != n {
				continue
			}
			q := delta
			for k := base; ; k += base {
				threshold := min(max(k-bias, tmin), tmax)
				if q < threshold {
					break
				}
				out = append(out, punycodeDigit(threshold+(q-threshold)%(base-threshold)))
				q = (q - threshold) / (base - threshold)
			}
			out = append(out, punycodeDigit(q))
			bias = punycodeBias(delta, handled+1, handled == basic)
			delta = 0
			handled++
		}
		delta++
		n++
	}
	return string(out)
}

const punycodeDigits = "abcdefghijklmnopqrstuvwxyz0123456789"

func punycodeDigit(d int) byte { return punycodeDigits[d] }

// punycodeBias adapts the bias (RFC 3492, section 6.1).
func punycodeBias(delta, points int, first bool) int {
	const base, tmin, tmax, skew, damp = 36, 1, 26, 38, 700
	if first {
		delta /= damp
	} else {
		delta /= 2
	}
	delta += delta / points
	k := 0
	for ; delta > (base-tmin)*tmax/2; k += base {
		delta /= base - tmin
	}
	return k + (base-tmin+1)*delta/(delta+skew)
}

// isURLText reports whether s has only characters that may follow the host of a URL (RFC 3986, appendix A)
// and each of its percent signs is followed by two hexadecimal digits.
func isURLText(s string) bool {
	for i := range len(s) {
		c := s[i]
		switch {
		case c == '%':
			if i+2 >= len(s) || !isHex(s[i+1]) || !isHex(s[i+2]) {
				return false
			}
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case strings.IndexByte("-._~:/?[]@!$&'()*+,;=", c) < 0:
			return false
		}
	}
	return true
}

func isHex(c byte) bool { return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'f' }

// isNumber reports whether programs take a host with this last label for an IPv4 address, since the
// label is a decimal, octal or hexadecimal number (URL Standard of WHATWG, "ends in a number").
func isNumber(label string) bool {
	digits := strings.Trim(label, "0123456789") == ""
	return label != "" && (digits || strings.HasPrefix(label, "0x"))
}

// isHostLetter reports whether a character beyond ASCII may be in a host name: it must be a letter, and
// not one that programs take for another letter, such as a full-width form.
func isHostLetter(r rune) bool {
	fullWidth := r >= 0xff00 && r <= 0xffef
	mathematical := r >= 0x1d400 && r <= 0x1d7ff
	letterlike := r >= 0x2100 && r <= 0x218f
	return unicode.IsLetter(r) && !fullWidth && !mathematical && !letterlike
}

// isHostLabel reports whether s is a label of a host name, in lower case. It accepts underscores:
// names of hosts have none, but names of services in their domains do.
func isHostLabel(s string) bool {
	return s != "" && len(s) <= maxHostLabel && s[0] != '-' && s[len(s)-1] != '-' &&
		strings.Trim(s, hostSymbols) == ""
}

const hostSymbols = "abcdefghijklmnopqrstuvwxyz0123456789-_"

// cutPort splits the host and the port of a URL; the port is "" if there is none. It reports false
// for a port that is not a number from 1 to 65535, written in digits without leading zeros.
func cutPort(authority string) (host, port string, ok bool) {
	i := strings.LastIndexByte(authority, ':')
	if i <= strings.LastIndexByte(authority, ']') { // no port; also if there is neither a colon nor a bracket
		return authority, "", true
	}
	host, port = authority[:i], authority[i+1:]
	n, err := strconv.ParseUint(port, 10, 16)
	return host, port, err == nil && n > 0 && port == strconv.FormatUint(n, 10)
}

const maxHostLabel = 63

// isContact reports whether a text is a URI of one of some schemes at which somebody can be reached.
func isContact(text string, schemes ...string) bool {
	u, err := url.Parse(text)
	return err == nil && slices.Contains(schemes, u.Scheme) && u.Host+u.Opaque != ""
}
