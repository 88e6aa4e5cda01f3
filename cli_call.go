package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A command is a call of a route. It is carried out in the process over the opened database, by the handler that
// answers the route to callers over HTTP, without a listener, workers, chores or a peer. Its caller is the operator,
// who has the scope admin without a token, and whom events name as "command:USER". No bucket, limit, turn or deadline
// holds a command up. The store locks and refuses what it locks and refuses for any other command.

// A routeCommand is a command that is a name for a route, or a list that no route answers with. Its arguments fill the
// wildcards of the path, by name or in order; of others one that is called JSON is the body, ACCOUNT the parameter
// account_id, any other the member of its name. Its options are the members of the body and the parameters, see
// routeOptions. What is said here is what differs from the route.
type routeCommand struct {
	name    string // "license suspend"
	route   string // "POST /licenses/{id}/suspend"; "": rows.pages reads the rows
	args    string // as command.args; "": the wildcards of the path, {id} by the first word of the name
	help    string // "": the summary that the OpenAPI document has of the route
	options []option
	sends   map[string]any // members that it sends in place of all that could be options
	rows    *listCommand   // how rows are listed; nil: it answers with no list

	// What people see of the answer. Without any of these it is every member, see printAnswer.
	text    string                         // "${id} is ${status}", see fillText
	says    func(answer *jsonValue) string // what text is, where that depends on the answer
	columns string                         // of a table of its rows, or of the answer as one; see listCommand

	keys func(e *env) (*keyring, error) // reads the key file; nil: the route does not need it

	// before is called first, and refuses or sets what the route does not. nil: nothing does.
	before func(e *env, r *routeRequest) error

	// asks says what the command does, for confirm, by what the route answers with ?dry_run=true, and has the request
	// name what it has asked about; "": there is nothing to ask. nil: the command does not ask. See also asking.
	asks func(r *routeRequest, would *jsonValue) string

	// after says on standard error what is left to do once the answer is printed. nil: nothing is.
	after func(e *env, answer *jsonValue)
}

// command returns the command, which takes what the route takes; nil: it has none.
func (c routeCommand) command(rt *route, kinds []idKind) command {
	args := c.args
	if args == "" {
		for _, name := range wildcardsOf(c.route) {
			if name == "id" {
				name, _, _ = strings.Cut(c.name, " ")
			}
			args += " " + strings.ToUpper(strings.TrimSuffix(name, "_id"))
		}
		args = strings.TrimPrefix(args, " ")
	}
	options := c.options
	if rt != nil {
		options = c.routeOptions(rt, args, kinds)
	}
	if c.rows != nil {
		options = slices.Concat(options, c.rows.options(rt))
	}
	return command{c.name, args, c.help, options, c.run}
}

// optionNames are the names of options that are not those of the members that they set.
var optionNames = map[string]string{"account_id": "account", "expires_at": "expires", "payment_id": "payment",
	"q": "search", "starts_at": "starts", "license_id": "license", "device_id": "device"}

// routeOptions returns the options of a command: one for each parameter and member of the body that its route reads, in
// that order, but for those that an argument or an option of its own sets, those of a list's pages and of the feed, and
// those that no option can hold: objects, and lists of them. Then its own.
func (c *routeCommand) routeOptions(rt *route, args string, kinds []idKind) (all []option) {
	taken := append(strings.Fields(strings.ToLower(args)), "limit", "cursor", "since", "until", "after", "wait",
		"dry_run")
	for _, o := range c.options {
		taken = append(taken, o.member)
	}
	if slices.Contains(taken, "account") || len(wildcardsOf(c.route)) > 0 {
		taken = append(taken, "account_id")
	}
	for _, r := range readingsOf(rt.endpoint.read) {
		isMember := r.path == "#" && c.sends == nil && !slices.Contains(taken, "json")
		if !isMember && r.path != inQuery || slices.Contains(taken, r.name) {
			continue
		}
		if o := r.option(rt.method(), kinds); o.name != "" {
			all = append(all, o)
			taken = append(taken, r.name)
		}
	}
	return append(all, c.options...)
}

// option returns the option that sends what is read; without a name if none can.
func (r *reading) option(method string, kinds []idKind) option {
	o := option{name: strings.ReplaceAll(cmp.Or(optionNames[r.name], r.name), "_", "-"), value: "TEXT", member: r.name}
	lastWord := strings.ToUpper(o.name[strings.LastIndex(o.name, "-")+1:])
	switch {
	case r.name == optAccount.member && method == "GET":
		return optOfAccount
	case r.name == optAccount.member:
		return optAccount
	case r.kind == jsonBool && method == "PATCH":
		o.value, o.reads = "yes|no", asYesOrNo
	case r.kind == jsonBool:
		o.value, o.reads = "", switchValue(true)
	case slices.Equal(r.check.words, []string{"true", "false"}):
		o.value, o.reads = "", switchValue("true")
	case r.kind == jsonNumber && r.nullable:
		o.value, o.reads, o.null = "N", asLimit, noLimit
	case r.kind == jsonNumber:
		o.value, o.reads = "N", asNumber
	case r.kind == jsonArray && r.each > 0:
		o.value, o.reads = strings.TrimSuffix(lastWord, "S")+",…", asList
		if len(r.check.words) > 0 {
			o.words = r.wordList
		}
	case r.kind != jsonString:
		return option{}
	case r.format == "date-time" && (lastWord == "EXPIRES" || lastWord == "UNTIL"):
		o.value, o.reads = "TIME", asTime((*env).parseEnd)
	case r.format == "date-time", r.check.format == "date-time":
		o.value, o.reads = "TIME", asTime((*env).parseTime)
	case r.check.format == "date":
		o.value, o.reads = "DATE", asDay
	case len(r.check.words) > 0:
		o.value, o.reads, o.words = lastWord, asOneOf(r.check.words), r.wordList
	case r.nullable && method == "PATCH":
		o.reads, o.null = asTextOrNull, "an empty one removes it"
	case r.check.format == "uri":
		o.value = "URL"
	}
	for _, kind := range kinds {
		if r.check.pattern != "" && r.check.pattern == idPattern(kind.prefix) {
			o.value = kind.argument
		}
	}
	return o
}

// wordList returns the only texts that pass.
func (r *reading) wordList() []string { return r.check.words }

// routeDocument is the OpenAPI document.
var routeDocument = sync.OnceValue(func() *jsonValue {
	document, err := parseDocument(embedded("web/openapi.json"))
	if err != nil {
		panic(err) // which is embedded
	}
	return &document
})

// explained returns commands whose help is, where nothing else is said of them and their options, what the OpenAPI
// document says of the routes that they call.
func explained(all []command, of []noun) []command {
	document := routeDocument()
	all = slices.Clone(all)
	for _, call := range collectNouns(of, func(n *noun) []routeCommand { return n.calls }) {
		method, path, _ := strings.Cut(call.route, " ")
		operation := document.at("paths", path, strings.ToLower(method))
		c := &all[slices.IndexFunc(all, func(c command) bool { return c.name == call.name })]
		c.help, c.options = cmp.Or(c.help, helpOf(operation.at("summary").text)), slices.Clone(c.options)
		for i := range c.options {
			if o := &c.options[i]; o.help == "" {
				o.help = o.helpFrom(descriptionOf(document, operation, o.member))
			}
		}
	}
	return all
}

// descriptionOf returns what the document says of a parameter of an operation, or of a member of its body.
func descriptionOf(document, operation *jsonValue, member string) string {
	body := operation.at("requestBody", "content", "application/json", "schema")
	said := resolved(document, body).at("properties", member)
	for _, parameter := range elementsOf(operation.at("parameters")) {
		if parameter = resolved(document, parameter); parameter.at("name").text == member {
			said = parameter
		}
	}
	return cmp.Or(said.at("description").text, resolved(document, said).at("description").text)
}

// helpFrom returns the help of an option of which the document says so much: of null, how a line sends it.
func (o *option) helpFrom(description string) string {
	text, meaning, isNullable := strings.Cut(helpOf(description), ", or null: ")
	switch {
	case !isNullable || o.null == "" || meaning == o.null:
		return text
	case o.null == noLimit:
		return text + "; " + o.null + ": " + meaning
	}
	return text + "; " + o.null
}

// resolved returns what a reference within an OpenAPI document leads to; what is none, as it is.
func resolved(document, v *jsonValue) *jsonValue {
	if ref, is := v.member("$ref"); is {
		return document.at(strings.Split(strings.TrimPrefix(ref.text, "#/"), "/")...)
	}
	return v
}

// helpOf returns the first sentence of a description as a line of the help.
func helpOf(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	text, _, _ = strings.Cut(text, ". ")
	text = strings.ReplaceAll(strings.TrimSuffix(text, "."), "`", "")
	if _, size := utf8.DecodeRuneInString(text); size < len(text) && !unicode.IsUpper(rune(text[size])) {
		return strings.ToLower(text[:size]) + text[size:]
	}
	return text
}

// run runs the command.
func (c routeCommand) run(e *env) error {
	r, err := e.request(c.route)
	if err != nil {
		return err
	}
	maps.Copy(r.members, c.sends)
	if c.before != nil {
		if err := c.before(e, r); err != nil {
			return e.explain(err)
		}
	}
	if c.rows != nil {
		return c.rows.run(e, r)
	}
	if c.asks != nil {
		err := e.confirm(func(*queries) (string, error) {
			would, err := e.tryRoute(c.keys, r)
			if err != nil {
				return "", err
			}
			return c.asks(r, would), nil
		})
		if err != nil {
			return err
		}
	}
	answer, err := e.callRoute(c.keys, r)
	if err != nil {
		return err
	}
	return c.print(e, r, answer)
}

// asking returns routeCommand.asks for a text in which members of the answer are filled in, see fillText.
func asking(text string) func(*routeRequest, *jsonValue) string {
	return func(_ *routeRequest, would *jsonValue) string { return fillText(text, would) }
}

// tryRoute returns what a route answers that only tells what it would do. What a DELETE would end is kept in r.ends.
func (e *env) tryRoute(keys func(*env) (*keyring, error), r *routeRequest) (*jsonValue, error) {
	r.query.Set("dry_run", "true")
	defer r.query.Del("dry_run")
	answer, err := e.callRoute(keys, r)
	if err != nil {
		return nil, err
	}
	would, err := parseJSON(answer)
	r.ends = &would
	return &would, err
}

// callRoute calls a route as the operator and returns the body of its answer, see asOperator.
func (e *env) callRoute(keys func(*env) (*keyring, error), r *routeRequest) (answer []byte, err error) {
	err = e.asOperator(keys, func(o *routeCaller) error {
		answer, err = o.call(r)
		return err
	})
	return answer, err
}

// print prints the answer of the route: with -json as it is.
func (c routeCommand) print(e *env, r *routeRequest, answer []byte) error {
	if len(answer) == 0 {
		return e.done(r.fill(c.text, cmp.Or(r.ends, &jsonValue{})))
	}
	v, err := parseJSON(answer)
	if err != nil {
		return err
	}
	if c.after != nil {
		defer c.after(e, &v)
	}
	rows := []*jsonValue{&v}
	if data, many := v.member("data"); many {
		rows = elementsOf(data)
	}
	if c.says != nil {
		c.text = c.says(&v)
	}
	switch {
	case e.on("json"):
		return e.printRows("", nil, rows)
	case c.columns != "":
		return e.printRows(c.columns, nil, rows)
	case c.text == "":
		return e.printAnswer(&v)
	}
	return e.print(nil, r.fill(c.text, &v))
}

// A routeRequest is what a command sends to a route.
type routeRequest struct {
	route   string
	path    map[string]string // its wildcards
	query   url.Values
	members map[string]any // of the body
	body    string         // in place of members: as it was typed
	ends    *jsonValue     // by a dry run; nil: there was none
}

// fill is fillText for a text that may also have the wildcards of the path.
func (r *routeRequest) fill(text string, answer *jsonValue) string {
	return os.Expand(text, func(name string) string {
		if _, there := answer.member(name); !there && r.path[name] != "" {
			return r.path[name]
		}
		return fillName(name, answer)
	})
}

// request returns what the command's line sends to a route.
func (e *env) request(route string) (*routeRequest, error) {
	r := &routeRequest{route: route, path: map[string]string{}, query: url.Values{}, members: map[string]any{}}
	wildcards := wildcardsOf(route)
	for i, word := range strings.Fields(e.command.args) {
		switch arg, name := e.args[i], strings.ToLower(word); {
		case slices.Contains(wildcards, name):
			r.path[name] = arg
		case slices.Contains(wildcards, name+"_id"):
			r.path[name+"_id"] = arg
		case i < len(wildcards):
			r.path[wildcards[i]] = arg
		case word == accountPlaceholder:
			r.query.Set(optAccount.member, arg)
		case word == "JSON":
			r.body = arg
		default:
			r.members[name] = arg
		}
	}
	return r, e.readOptions(r)
}

// readOptions sets what the options of the command's line send.
func (e *env) readOptions(r *routeRequest) error {
	get := strings.HasPrefix(r.route, "GET ")
	for _, o := range e.command.options {
		unset := !e.given(o.name) && o.def == "" || o.value == "" && !e.on(o.name) || get && e.str(o.name) == ""
		if o.member == "" || unset {
			continue
		}
		if !utf8.ValidString(e.str(o.name)) { // which JSON can't hold
			return usageError("-" + o.name + ": This must be UTF-8.")
		}
		value := any(e.str(o.name))
		if o.reads != nil {
			var err error
			if value, err = o.reads(e, e.str(o.name)); err != nil {
				return fmt.Errorf("-%s: %w", o.name, err)
			}
		}
		switch {
		case value == nil:
		case get || o.name == optAccount.name:
			r.query.Set(o.member, fmt.Sprint(value))
		default:
			r.members[o.member] = value
		}
	}
	return nil
}

// wildcardsOf returns the names of the wildcards of a route's path.
func wildcardsOf(route string) (names []string) {
	for part := range strings.SplitSeq(route, "/") {
		if name, is := strings.CutPrefix(part, "{"); is {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

// A routeCaller calls, as the operator, routes of a server that serves nobody else.
type routeCaller struct {
	server *server
	who    *caller
	env    *env
}

// asOperator opens the database and calls f. keys reads the key file; nil: no route that f calls needs it. Errors:
// those of f, worded for the command line.
func (e *env) asOperator(keys func(*env) (*keyring, error), f func(*routeCaller) error) (err error) {
	var ring *keyring
	if keys != nil {
		if ring, err = keys(e); err != nil {
			return err
		}
	}
	allow, err := parsePrefixes(optOutboundAllow.name, e.commaList(optOutboundAllow.name))
	if err != nil {
		return err
	}
	return e.explain(e.withStore(func(st *store) error {
		how := serverOptions{outboundAllow: allow, urls: e.values, noOutside: st.refuseDemo(st.path)}
		s, err := newServer(st, ring, how, slog.New(slog.DiscardHandler), e.nouns)
		if err != nil {
			return err
		}
		main, err := st.mainAccount()
		if except(err, errNotFound) != nil {
			return err
		}
		who := &caller{claims: claims{Subject: main, Scope: scopeAdmin}, all: true, command: e.actor()}
		return f(&routeCaller{s, who, e})
	}))
}

// call calls a route and returns the body of its answer; none for an answer without one (204). Unknown members are
// refused.
func (o *routeCaller) call(sent *routeRequest) ([]byte, error) {
	rt := o.route(sent.route)
	r, err := http.NewRequestWithContext(o.env.ctx, rt.method(), "/?"+sent.query.Encode(), nil)
	if err != nil {
		return nil, err
	}
	for name, value := range sent.path {
		r.SetPathValue(name, value)
	}
	kept := &keptAnswer{header: http.Header{}}
	c := &call{request: r, response: &response{ResponseWriter: kept}, caller: o.who, now: o.server.now(),
		forced: o.env.on("force"), core: coreCall{route: rt, bearer: o.who, strict: true}}
	var body *jsonValue
	if rt.takesJSON() {
		text := []byte(sent.body)
		if sent.body == "" {
			text = encodeJSON(sent.members)
		}
		if c.core.parsed, err = parseBody(text, cmp.Or(rt.values, maxBodyValues)); err != nil {
			return nil, usageError("this is not a JSON object: " + printable(err.Error()))
		}
		c.core.body, body = text, &c.core.parsed
	}
	o.server.startReading(c, body)
	result, err := rt.run(o.env.ctx, c)
	if err != nil {
		return nil, err
	}
	o.server.answer(c, result)
	return kept.body.Bytes(), nil
}

// route returns the route of a pattern that there is.
func (o *routeCaller) route(pattern string) *route {
	return &o.server.routes[slices.IndexFunc(o.server.routes, func(rt route) bool { return rt.pattern == pattern })]
}

// A keptAnswer is a ResponseWriter that keeps an answer.
type keptAnswer struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *keptAnswer) Header() http.Header         { return k.header }
func (k *keptAnswer) WriteHeader(status int)      { k.status = status }
func (k *keptAnswer) Write(b []byte) (int, error) { return k.body.Write(b) }

// explain turns the refusal of a route, which is worded for callers of the API, into an error for the operator. A value
// that can't be taken is a usageError that names its option or argument, unless it names what does not exist.
func (e *env) explain(err error) error {
	var ref *refusal
	if !errors.As(err, &ref) || ref == errAccount {
		return withNextStep(err)
	}
	if len(ref.fields) == 0 && ref.code.status != http.StatusNotFound {
		return err
	}
	if len(ref.fields) == 0 {
		words := strings.Fields(e.command.name)
		words[len(words)-1] = "list"
		if c, _ := findCommand(e.commands, words); c != nil && c != e.command {
			text := fmt.Sprintf("not found: 'widgetd %s' prints what there is", c.name)
			if len(e.args) > 0 && len(e.args[0]) < 26 { // no whole id
				text += fmt.Sprintf("; ends of ids have at least %d symbols, of orders of the last 7 days %d",
					leastIDEnd, leastShortEnd)
			}
			return errors.New(text)
		}
		return withNextStep(errNotFound)
	}
	var texts []string
	unknown := true // every value names what does not exist
	for _, f := range ref.fields {
		texts = append(texts, e.fieldText(f))
		member, _, _ := strings.Cut(strings.TrimPrefix(f.Pointer, "#/"), "/")
		unknown = unknown && f.Code == "unknown_value" && slices.Contains(rowMembers, member)
	}
	text := strings.Join(texts, "; ")
	if unknown {
		return errors.New(text)
	}
	return usageError(text)
}

// rowMembers are the members whose values are none of a few words, but what there is or is not.
var rowMembers = []string{"payment_id", "organisation", "lines"}

// fieldText says what is wrong with one value, by the name of its option or argument.
func (e *env) fieldText(f fieldError) string {
	name := strings.TrimPrefix(f.Pointer, "#/") + f.Parameter
	member, element, _ := strings.Cut(name, "/")
	for word := range strings.FieldsSeq(e.command.args) {
		if strings.ToLower(word) == member {
			name = word
		}
	}
	for _, o := range e.command.options {
		if o.member != member || o.member == "" {
			continue
		}
		if f.Code == "required" {
			return o.signature() + " is needed"
		}
		name = "-" + o.name
		if at, err := strconv.Atoi(element); err == nil { // of a list
			if list := e.commaList(o.name); at < len(list) {
				name += ": " + printable(list[at])
			}
		}
		break
	}
	if len(f.Allowed) > 0 {
		return name + ": there is no such member, but " + strings.Join(f.Allowed, ", ")
	}
	return name + ": " + f.Detail
}

// fillText returns a text with the members of an answer in place of their names: "${id} is ${state}". What stands
// behind a name says how: "${total money}" is an amount in the answer's currency, "${url host}" the host of an address,
// and "${seats.used device}" a count, as "1 device". Behind a "|" stands what null is: "${send_from|never}".
func fillText(text string, answer *jsonValue) string {
	return os.Expand(text, func(name string) string { return fillName(name, answer) })
}

// fillName returns what stands in place of a name, see fillText.
func fillName(name string, answer *jsonValue) string {
	name, ifNull, _ := strings.Cut(name, "|")
	name, form, _ := strings.Cut(name, " ")
	member := memberAt(answer, name)
	n, _ := member.integer()
	switch {
	case ifNull != "" && member.kind == jsonNull:
		return ifNull
	case form == "":
		return memberText(member)
	case form == "money":
		return formatMoney(n, rawMember(answer, "currency"))
	case form == "host":
		return hostWithPort(member.text)
	}
	return countOf(n, form)
}

// memberAt returns the member of an answer at a path, as "seats.used"; null if there is none.
func memberAt(v *jsonValue, path string) *jsonValue { return v.at(strings.Split(path, ".")...) }

// What options send to routes, in place of their texts. An empty number, object or time is not sent.

// asNumber sends a number. Anything else goes as it is, for the route to refuse.
func asNumber(_ *env, text string) (any, error) {
	if n, err := strconv.Atoi(text); err == nil {
		return n, nil
	}
	return unlessEmpty(text), nil
}

func unlessEmpty(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// noLimit stands for no limit, where an empty text means the default.
const noLimit = "none"

// asLimit is asNumber for a limit: "none" sends null, for no limit.
func asLimit(e *env, text string) (any, error) {
	if strings.EqualFold(text, noLimit) {
		return json.RawMessage("null"), nil
	}
	return asNumber(e, text)
}

// asTextOrNull sends a text, and null for an empty one.
func asTextOrNull(_ *env, text string) (any, error) {
	if text == "" {
		return json.RawMessage("null"), nil
	}
	return text, nil
}

// asYesOrNo sends true or false. It refuses any other word.
func asYesOrNo(_ *env, word string) (any, error) {
	if word != "yes" && word != "no" {
		return nil, usageError("give yes or no")
	}
	return word == "yes", nil
}

// asOneOf sends one of a few words. It refuses any other.
func asOneOf[T ~string](choices []T) func(*env, string) (any, error) {
	words := asTexts(choices)
	return func(_ *env, word string) (any, error) {
		if word != "" && !slices.Contains(words, word) {
			return nil, unknownWord("there is no", word, words)
		}
		return unlessEmpty(word), nil
	}
}

// asList sends the elements of a list.
func asList(_ *env, text string) (any, error) { return append([]string{}, splitList(text)...), nil }

// asWords sends the elements of a list as a text, with spaces between them.
func asWords(_ *env, text string) (any, error) { return strings.Join(splitList(text), " "), nil }

// asObject sends JSON. What is none goes as it is, for the route to refuse.
func asObject(_ *env, text string) (any, error) {
	if json.Valid([]byte(text)) {
		return json.RawMessage(text), nil
	}
	return unlessEmpty(text), nil
}

// switchValue returns how a switch sends a value.
func switchValue(value any) func(*env, string) (any, error) {
	return func(*env, string) (any, error) { return value, nil }
}

// asDay sends a date as routes read it. Anything else goes as it is, for the route to refuse.
func asDay(_ *env, text string) (any, error) {
	if day, ok := parseDate(text); ok {
		return day.day(), nil
	}
	return text, nil
}

// asTime sends a time as read reads it.
func asTime(read func(*env, string) (stamp, error)) func(*env, string) (any, error) {
	return func(e *env, text string) (any, error) {
		at, err := read(e, text)
		if at.IsZero() {
			return nil, err
		}
		return at, err
	}
}
