/* SPDX-License-Identifier: Apache-2.0 */
#include "io/wire/http/h1_parse_priv.h"

#define NO_BODY     1 /* Tells llhttp that no body follows, whatever the fields say. */
#define MAX_LEADING 8 /* Stray line ends before a request line. */

static struct h1_parser *parser_of(llhttp_t *ll)
{
	return ll->data;
}

static int parser_fault(struct h1_parser *p, int status, const char *why)
{
	if (p->phase != H1_BAD) {
		p->phase = H1_BAD;
		p->fault_status = status;
		p->fault = why;
	}
	return HPE_USER;
}

/* ---- head ---- */

static int too_large(struct h1_parser *p)
{
	return parser_fault(p, 431, "the header fields are larger than this server accepts");
}

static int on_url(llhttp_t *ll, const char *at, size_t n)
{
	return http_store_pseudo(parser_of(ll)->store, HTTP_P_PATH, at, n) ? 0 : too_large(parser_of(ll));
}

static int on_field(llhttp_t *ll, const char *at, size_t n)
{
	struct h1_parser *p = parser_of(ll);
	if (p->store == NULL)
		return parser_fault(p, 400, "a header field outside of a head");
	if ((p->in_value || p->store->n == 0) && !http_store_field(p->store))
		return too_large(p);
	p->in_value = false;
	return http_store_name(p->store, at, n) ? 0 : too_large(p);
}

static int on_field_complete(llhttp_t *ll)
{
	parser_of(ll)->in_value = true;
	return 0;
}

static int on_value(llhttp_t *ll, const char *at, size_t n)
{
	struct h1_parser *p = parser_of(ll);
	if (p->store == NULL || p->store->n == 0)
		return parser_fault(p, 400, "a header value without a name");
	p->in_value = true;
	return http_store_value(p->store, at, n) ? 0 : too_large(p);
}

struct framing {
	unsigned hosts, lengths, encodings;
	struct cgn_str encoding;
};

static struct framing framing_of(const struct http_head *h)
{
	struct framing f = {0};
	for (size_t i = 0; i < h->n_fields; i++) {
		struct cgn_str name = h->fields[i].name;
		if (name.n == 4 && cgn_str_is(name, "host"))
			f.hosts++;
		else if (name.n == 14 && cgn_str_is(name, "content-length"))
			f.lengths++;
		else if (name.n == 17 && cgn_str_is(name, "transfer-encoding")) {
			f.encodings++;
			f.encoding = h->fields[i].value;
		}
	}
	return f;
}

/* The same rules for both directions: the end of the body has exactly one reading, or the message is
 * refused. */
static int framing_check(struct h1_parser *p, const struct http_head *h, const struct framing *f)
{
	for (size_t i = 0; i < h->n_fields; i++)
		if (!http_name_is_token(h->fields[i].name) || !http_text_is_clean(h->fields[i].value))
			return parser_fault(p, 400, "a header field has a byte that is not allowed");
	if (f->lengths > 1)
		return parser_fault(p, 400, "content-length is given more than once");
	if (f->encodings == 0)
		return 0;
	if (f->lengths > 0)
		return parser_fault(p, 400, "both content-length and transfer-encoding are given");
	if (h->version == 10)
		return parser_fault(p, 400, "transfer-encoding does not exist in HTTP/1.0");
	if (f->encodings > 1 || !cgn_str_eq_nocase(f->encoding, CGN_STR("chunked")))
		return parser_fault(p, 501, "transfer-encoding must be exactly \"chunked\"");
	return 0;
}

static bool authority_is_sane(struct cgn_str a)
{
	for (size_t i = 0; i < a.n; i++)
		if ((unsigned char)a.p[i] <= 0x20 || (unsigned char)a.p[i] >= 0x7f ||
			strchr("/?#@\\,<>\"{}|^`", a.p[i]) != NULL)
			return false;
	return true;
}

/* "http://host/path" is the form of "/path" for proxies: its host overrides the Host field (RFC 9112
 * 3.2.2). */
static void absolute_form(struct http_head *h)
{
	size_t skip = cgn_str_starts(h->path, "http://") ? 7 : cgn_str_starts(h->path, "https://") ? 8 : 0;
	if (skip == 0)
		return;
	struct cgn_str rest = {h->path.p + skip, h->path.n - skip};
	size_t n = 0;
	while (n < rest.n && rest.p[n] != '/' && rest.p[n] != '?')
		n++;
	h->authority = (struct cgn_str){rest.p, n};
	h->path = n < rest.n && rest.p[n] == '/' ? (struct cgn_str){rest.p + n, rest.n - n} : CGN_STR("/");
}

static int host_take(struct h1_parser *p, struct http_head *h, unsigned hosts)
{
	if (hosts > 1 || (hosts == 0 && h->version == 11))
		return parser_fault(p, 400,
			hosts == 0 ? "the host field is missing" : "the host field is given more than once");
	for (size_t i = 0; i < h->n_fields; i++)
		if (cgn_str_is(h->fields[i].name, "host")) {
			h->authority = h->fields[i].value;
			http_store_drop(p->store, i);
			break;
		}
	absolute_form(h);
	if (!authority_is_sane(h->authority))
		return parser_fault(p, 400, "the host field is not a host");
	if (h->path.n == 0 || (h->path.p[0] != '/' && !cgn_str_is(h->path, "*")))
		return parser_fault(p, 400, "the request target must begin with a slash");
	return 0;
}

static int request_head(struct h1_parser *p, struct http_head *h, const struct framing *f)
{
	if (p->ll.method == HTTP_CONNECT)
		return parser_fault(p, 501, "CONNECT is not supported");
	h->method = cgn_str_of(llhttp_method_name((llhttp_method_t)p->ll.method));
	return host_take(p, h, f->hosts);
}

static int interim_head(struct h1_parser *p)
{
	if (p->ll.status_code < 100)
		return parser_fault(p, 400, "the status is less than 100");
	if (p->ll.status_code == 101)
		return parser_fault(p, 400, "the answer switches protocols, which was not asked for");
	return ++p->interim > H1_MAX_INTERIM ? parser_fault(p, 400, "too many interim answers") : NO_BODY;
}

static int on_headers_complete(llhttp_t *ll)
{
	struct h1_parser *p = parser_of(ll);
	struct http_head *h = http_store_head(p->store);
	if (ll->http_major != 1 || ll->http_minor > 1)
		return parser_fault(p, 505, "this version of HTTP is not spoken here");
	h->version = (uint8_t)(10 + ll->http_minor);
	struct framing f = framing_of(h);
	int rc = framing_check(p, h, &f);
	if (rc == 0)
		rc = p->response ? 0 : request_head(p, h, &f);
	if (rc != 0)
		return rc;
	h->status = p->response ? ll->status_code : 0;
	if (p->response && h->status < 200)
		return interim_head(p);
	h->content_length = f.lengths > 0          ? (int64_t)ll->content_length
		: !p->response && f.encodings == 0 ? 0
						   : -1;
	p->chunked = f.encodings > 0;
	p->keep_alive = h->version == 11 ? (ll->flags & F_CONNECTION_CLOSE) == 0
					 : (ll->flags & F_CONNECTION_KEEP_ALIVE) != 0;
	p->phase = H1_BODY;
	p->ops->on_head(p->user, h);
	return p->no_body || h->status == 204 || h->status == 304 ? NO_BODY : 0;
}

/* ---- body ---- */

static int on_body(llhttp_t *ll, const char *at, size_t n)
{
	struct h1_parser *p = parser_of(ll);
	/* An open span at the end of the bytes; a reader that stops at each piece would never get past it. */
	if (n == 0)
		return 0;
	p->progress = true;
	p->ops->on_body(p->user, (const uint8_t *)at, n);
	return p->stop ? HPE_PAUSED : 0;
}

static int on_chunk_ext(llhttp_t *ll, const char *at, size_t n)
{
	(void)at;
	struct h1_parser *p = parser_of(ll);
	p->ext_bytes += n < H1_MAX_CHUNK_EXT ? (uint32_t)n : H1_MAX_CHUNK_EXT + 1;
	return p->ext_bytes > H1_MAX_CHUNK_EXT ? parser_fault(p, 400, "the chunk extensions are too long")
					       : 0;
}

/* After the last chunk come lines again, which are checked as such. */
static int on_chunk_header(llhttp_t *ll)
{
	struct h1_parser *p = parser_of(ll);
	p->progress = true;
	if (ll->content_length != 0)
		return 0;
	p->phase = H1_TRAILER;
	p->line_bytes = 0;
	p->cr = false;
	p->in_value = false;
	p->store = http_store_get(p->spare, p->max_head_bytes, p->max_fields);
	return HPE_PAUSED;
}

static void trailers_filter(struct http_store *s)
{
	for (size_t i = s->head.n_fields; i-- > 0;)
		if (!http_field_passes(s->fields, s->head.n_fields, i) ||
			cgn_str_is(s->fields[i].name, "host"))
			http_store_drop(s, i);
}

static int on_message_complete(llhttp_t *ll)
{
	struct h1_parser *p = parser_of(ll);
	if (p->phase == H1_HEAD) { /* An interim answer: the final one follows. */
		p->phase = H1_START;
		http_store_put(p->spare, &p->store);
		return HPE_PAUSED;
	}
	bool trailing = p->phase == H1_TRAILER;
	p->phase = H1_DONE;
	if (trailing) {
		(void)http_store_head(p->store);
		trailers_filter(p->store);
	}
	p->ops->on_end(p->user, trailing ? p->store->fields : NULL, trailing ? p->store->head.n_fields : 0);
	http_store_put(p->spare, &p->store);
	return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
	.on_url = on_url,
	.on_header_field = on_field,
	.on_header_field_complete = on_field_complete,
	.on_header_value = on_value,
	.on_headers_complete = on_headers_complete,
	.on_body = on_body,
	.on_chunk_extension_name = on_chunk_ext,
	.on_chunk_extension_value = on_chunk_ext,
	.on_chunk_header = on_chunk_header,
	.on_message_complete = on_message_complete,
};

/* ---- driving ---- */

void h1_parser_init(struct h1_parser *p, bool response, const struct h1_parser_ops *ops, void *user,
	struct http_store **spare, uint32_t max_head_bytes, uint32_t max_fields)
{
	*p = (struct h1_parser){.ops = ops,
		.user = user,
		.spare = spare,
		.response = response,
		.max_head_bytes = max_head_bytes,
		.max_fields = max_fields};
}

void h1_parser_fini(struct h1_parser *p)
{
	http_store_put(p->spare, &p->store);
}

void h1_parser_next(struct h1_parser *p)
{
	http_store_put(p->spare, &p->store);
	h1_parser_init(p, p->response, p->ops, p->user, p->spare, p->max_head_bytes, p->max_fields);
}

static const char *llhttp_says(const llhttp_t *ll)
{
	const char *reason = llhttp_get_error_reason(ll);
	return reason != NULL && reason[0] != '\0' ? reason : "malformed message";
}

static size_t llhttp_run(struct h1_parser *p, const uint8_t *data, size_t n)
{
	p->halted = false;
	llhttp_errno_t e = llhttp_execute(&p->ll, (const char *)data, n);
	if (e == HPE_OK)
		return n;
	if (e != HPE_PAUSED && e != HPE_PAUSED_UPGRADE) {
		(void)parser_fault(p, 400, llhttp_says(&p->ll));
		return 0;
	}
	const char *at = llhttp_get_error_pos(&p->ll);
	if (e == HPE_PAUSED)
		llhttp_resume(&p->ll);
	else
		llhttp_resume_after_upgrade(&p->ll);
	p->halted = true;
	return at != NULL ? (size_t)(at - (const char *)data) : n;
}

/* Take one byte of a head or trailer. Returns true when it was the last one. */
static bool line_byte(struct h1_parser *p, uint8_t c)
{
	if (p->cr != (c == '\n')) {
		(void)parser_fault(p, 400,
			p->cr ? "a line has a carriage return inside" : "a line does not end in CR LF");
		return false;
	}
	if (c == '\n') {
		bool last = p->line_bytes == 0;
		p->cr = false;
		p->line_bytes = 0;
		return last;
	}
	p->cr = c == '\r';
	if (p->cr)
		return false;
	if (c == '\0')
		(void)parser_fault(p, 400, "a NUL byte in a head");
	else if (p->line_bytes++ == 0)
		(void)parser_fault(p, 400, "a line begins with white space (obsolete folding)");
	return false;
}

/* Return how many of these bytes belong to the head or trailer in progress; |*whole|: it ends with them. */
static size_t lines_span(struct h1_parser *p, const uint8_t *data, size_t n, bool *whole)
{
	*whole = false;
	for (size_t i = 0; i < n; i++) {
		if (data[i] > ' ' && !p->cr) {
			p->line_bytes++;
			continue;
		}
		*whole = line_byte(p, data[i]);
		if (*whole)
			return i + 1;
		if (p->phase == H1_BAD)
			return i;
	}
	return n;
}

static size_t feed_lines(struct h1_parser *p, const uint8_t *data, size_t n)
{
	size_t left = p->max_head_bytes - p->head_bytes;
	bool whole;
	size_t k = lines_span(p, data, n < left ? n : left, &whole);
	if (p->phase == H1_BAD)
		return 0;
	p->head_bytes += (uint32_t)k;
	size_t used = llhttp_run(p, data, k);
	if (p->phase == H1_BAD)
		return used;
	if (!whole && p->head_bytes >= p->max_head_bytes)
		(void)too_large(p);
	else if (whole && (p->phase == H1_HEAD || p->phase == H1_TRAILER || used != k))
		(void)parser_fault(p, 400, "the head does not end where it says");
	return used;
}

static size_t feed_body(struct h1_parser *p, const uint8_t *data, size_t n)
{
	p->progress = false;
	size_t used = llhttp_run(p, data, n);
	p->quiet_bytes =
		p->progress ? 0 : p->quiet_bytes + (uint32_t)(used < H1_MAX_QUIET ? used : H1_MAX_QUIET + 1);
	if (p->quiet_bytes > H1_MAX_QUIET)
		(void)parser_fault(p, 400, "chunk framing without a body");
	return used;
}

static size_t message_begin(struct h1_parser *p, const uint8_t *data)
{
	if (!p->response && (data[0] == '\r' || data[0] == '\n') && p->head_bytes < MAX_LEADING) {
		p->head_bytes++;
		return 1;
	}
	p->store = http_store_get(p->spare, p->max_head_bytes, p->max_fields);
	llhttp_init(&p->ll, p->response ? HTTP_RESPONSE : HTTP_REQUEST, &settings);
	p->ll.data = p;
	p->phase = H1_HEAD;
	p->line_bytes = p->head_bytes = 0;
	p->cr = p->in_value = p->halted = false;
	return 0;
}

/* on_head has returned, so the head's memory can be released. */
static void head_release(struct h1_parser *p)
{
	if (p->phase == H1_BODY)
		http_store_put(p->spare, &p->store);
}

static size_t parser_step(struct h1_parser *p, const uint8_t *data, size_t n)
{
	size_t used = 0;
	if (p->phase == H1_START)
		used = n > 0 ? message_begin(p, data) : 0;
	else if (p->phase == H1_HEAD || p->phase == H1_TRAILER)
		used = feed_lines(p, data, n);
	else if (p->phase == H1_BODY)
		used = feed_body(p, data, n);
	head_release(p);
	return used;
}

size_t h1_parser_feed(struct h1_parser *p, const uint8_t *data, size_t n)
{
	size_t at = 0;
	p->stop = false;
	while (p->phase < H1_DONE && !p->stop && (at < n || (p->halted && p->phase == H1_BODY)))
		at += parser_step(p, data + at, n - at);
	return at;
}

bool h1_parser_eof(struct h1_parser *p)
{
	if (p->phase != H1_BODY || p->chunked)
		return false;
	(void)llhttp_finish(&p->ll);
	return p->phase == H1_DONE;
}
