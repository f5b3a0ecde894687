/* SPDX-License-Identifier: Apache-2.0 */
/* relay: head, bytes and end of an engine's answer. */
#include "router/answer/answer/relay.h"
#include "router/request/isolate/isolate.h"

#include "base/apierror/apierror.h"
#include "base/coding/coding.h"
#include "base/log/log.h"
#include "policy/node/handoff/cached.h"
#include "policy/text/modelname/modelname.h"
#include "policy/text/toolcall/toolcall.h"
#include "router/answer/answer/events.h"
#include "router/answer/answer/keepalive.h"
#include "router/answer/answer/ollama.h"
#include "router/answer/answer/resume.h"
#include "router/request/account/account.h"
#include "router/request/account/sessions.h"
#include "router/request/calibration/calibration.h"
#include "router/request/cascade/cascade.h"
#include "router/request/hooks/hooks.h"
#include "router/request/limit/limit.h"
#include "router/shared/peers/peers.h"

#define ENGINE_DIED "the engine died while it answered"
#define MAX_FIELDS  (PROTO_MAX_HEADERS + GW_RELAY_FIELDS)
/* An encoded answer is read for its counts until it has more bytes than this, and this many for each that came. */
#define DECODED_LEAST ((uint64_t)1 << 20)
#define DECODED_TIMES 64

static bool starts_nocase(struct cgn_str name, const char *lead)
{
	size_t n = strlen(lead);
	return name.n >= n && cgn_str_eq_nocase((struct cgn_str){name.p, n}, cgn_str_of(lead));
}

/* Return true for a field by which a server speaks to browsers about its own host: the host that the client asked
 * is the router's, and the router decides. */
static bool is_of_the_host(struct cgn_str name)
{
	static const char *const names[] = {"set-cookie", "set-cookie2", "strict-transport-security",
		"alt-svc", "clear-site-data", "nel", "report-to"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (cgn_str_eq_nocase(name, cgn_str_of(names[i])))
			return true;
	return starts_nocase(name, "access-control-");
}

/* Fields that the router sets itself are not taken from an engine, which may be a hosted one that sets them
 * too. http drops the fields of the connection. */
static bool is_relayed(const struct gw_req *r, struct cgn_str name)
{
	/* The other fields of a peer speak of the operator's account there. */
	if (r->attempt.peer != NULL)
		return cgn_str_eq_nocase(name, CGN_STR("content-type"));
	return !cgn_str_eq_nocase(name, CGN_STR("x-request-id")) &&
		!cgn_str_eq_nocase(name, CGN_STR("content-length")) && !starts_nocase(name, "x-cgn-") &&
		!is_of_the_host(name) && !(r->plan.limits != NULL && starts_nocase(name, "x-ratelimit-"));
}

static struct cgn_str header_find(const struct gw_attempt *a, const char *name)
{
	for (size_t i = 0; i < a->n_headers; i++)
		if (cgn_str_eq_nocase(a->headers[i].name, cgn_str_of(name)))
			return a->headers[i].value;
	return (struct cgn_str){NULL, 0};
}

/* Return true if the answer is JSON, or lines or events of JSON (|*lines|). */
static bool is_readable(const struct gw_attempt *a, bool *lines)
{
	struct cgn_str type = header_find(a, "content-type");
	*lines = a->events || cgn_str_starts(type, "application/x-ndjson");
	return (*lines || cgn_str_starts(type, "application/json")) &&
		header_find(a, "content-encoding").n == 0;
}

/* Counts of an encoded answer are read behind a decoder. */
static void decoder_begin(struct gw_req *r)
{
	struct gw_answer *to = &r->answer;
	enum coding_kind kind = coding_of(CODING_IDENTITY, header_find(&r->attempt, "content-encoding"));
	if (kind != CODING_IDENTITY)
		to->unread = kind == CODING_OTHER || !cgn_ok(coding_open(kind, &to->decoder, NULL));
}

/* Another engine computed the prompt: the client sees how many tokens of it that engine found cached. */
static void cached_begin(struct gw_req *r)
{
	bool lines = false;
	if (r->answer.cached == NULL)
		return;
	if (is_readable(&r->attempt, &lines))
		r->answer.cached->events = lines;
	else
		r->answer.cached = NULL;
}

/* The sessions know from the answer which tools the client is going to run. */
static void tools_begin(struct gw_req *r)
{
	bool lines = false;
	if (r->client.turn.key != 0 && is_readable(&r->attempt, &lines))
		gw_session_answer(r, lines);
}

/* Return the client's name of the model, a JSON string: as the client wrote it, or the model's own name if the request names
 * a stored answer. p NULL: out of memory. The body is dropped with the head of the answer. */
static struct cgn_str name_shown(struct gw_req *r)
{
	if (r->prompt.name_n > 0)
		return cgn_arena_str(&r->arena,
			(struct cgn_str){r->body.bytes.p + r->prompt.name_at, r->prompt.name_n});
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct json_out j = json_out_to(&text);
	json_put_str(&j, r->prompt.asked);
	return text.bad ? (struct cgn_str){NULL, 0} : cgn_arena_str(&r->arena, cgn_buf_view(&text));
}

/* The node calls the model by another name than the client: the client finds its own name in the answer. */
static void rename_begin(struct gw_req *r)
{
	const struct gw_attempt *a = &r->attempt;
	bool lines = false, readable = is_readable(a, &lines);
	if (!r->plan.renamed || r->prompt.form || !readable ||
		r->prompt.name_at + r->prompt.name_n > r->body.bytes.n)
		return;
	struct cgn_str name = name_shown(r);
	struct modelname *f = cgn_arena_get(&r->arena, sizeof *f);
	if (name.p == NULL || f == NULL)
		return; /* no memory: the answer has the engine's name */
	modelname_init(f, lines ? MODELNAME_EVENTS : MODELNAME_DOCUMENT, name);
	r->answer.rename = f;
}

static int64_t content_length(const struct gw_attempt *a)
{
	uint64_t n = 0;
	return cgn_str_u64(header_find(a, "content-length"), &n) && n <= INT64_MAX ? (int64_t)n : -1;
}

/* Write the joules that the request has used until now; returns 0 if they are not known. */
static size_t joules_field(struct gw_req *r, struct http_field *f)
{
	const struct chooser_energy e = gw_attempt_joules(&r->attempt);
	const char *joules = e.counted ? cgn_arena_fmt(&r->arena, "%.3f", e.prefill_j + e.decode_j) : NULL;
	if (joules == NULL)
		return 0;
	*f = (struct http_field){CGN_STR("x-cgn-joules"), cgn_str_of(joules)};
	return 1;
}

/* The head of an event stream goes before the joules are known. That of an answer which is gathered from one goes at its end. */
static bool head_is_early(const struct gw_req *r)
{
	return r->answer.event_stream && (r->answer.ollama == NULL || r->answer.ollama_lines);
}

void gw_relay_close(struct gw_req *r)
{
	struct http_field f;
	bool late = r->client.reads_trailers && head_is_early(r);
	gw_out_end(r, &f, late ? joules_field(r, &f) : 0);
}

size_t gw_relay_fields(struct gw_req *r, struct http_field *f)
{
	const struct plan_leg *leg = plan_last(&r->plan.legs);
	const char *hit = cgn_arena_fmt(&r->arena, "%u/%u", leg->held, leg->blocks);
	size_t n = 0;
	f[n++] = (struct http_field){CGN_STR("x-request-id"), r->client.id};
	if (r->attempt.peer != NULL)
		f[n++] = (struct http_field){CGN_STR("x-cgn-peer"), cgn_str_of(r->attempt.peer->name)};
	else
		f[n++] = (struct http_field){CGN_STR("x-cgn-node"), cgn_str_of(r->attempt.call.node_id)};
	if (hit != NULL && r->attempt.peer == NULL)
		f[n++] = (struct http_field){CGN_STR("x-cgn-cache-hit"), cgn_str_of(hit)};
	if (!head_is_early(r))
		n += joules_field(r, f + n);
	if (r->client.set_cookie.n > 0)
		f[n++] = (struct http_field){CGN_STR("set-cookie"), r->client.set_cookie};
	if (r->client.if_available)
		f[n++] = GW_PREFERENCE_APPLIED;
	n += gw_cascade_field(r, f + n);
	n += gw_limit_fields(r, f + n);
	if (r->plan.quoted != NULL && r->plan.quoted->text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-quote"), r->plan.quoted->text};
	if (r->plan.explain_text.n > 0)
		f[n++] = (struct http_field){CGN_STR("x-cgn-explain"), r->plan.explain_text};
	return n;
}

static void head_send(struct gw_req *r)
{
	struct http_field f[MAX_FIELDS];
	struct gw_attempt *a = &r->attempt;
	size_t n = 0;
	for (size_t i = 0; i < a->n_headers && n < PROTO_MAX_HEADERS; i++)
		if (is_relayed(r, a->headers[i].name))
			f[n++] = (struct http_field){a->headers[i].name, a->headers[i].value};
	n += gw_relay_fields(r, f + n);
	rename_begin(r);
	if (r->answer.early)
		return;
	bool strips = r->plan.cascade != NULL && r->plan.cascade->strips;
	bool changed = r->answer.rename != NULL || r->answer.cached != NULL || strips;
	/* Usage that the client did not ask for is taken out of event streams; errors and resumed parts come in. */
	changed = changed || r->answer.event_stream;
	gw_out_head(r, a->status, f, n, changed ? -1 : content_length(a));
}

void gw_relay_head(struct gw_req *r)
{
	struct gw_attempt *a = &r->attempt;
	r->answer.status = a->status;
	r->answer.head_sent = true;
	decoder_begin(r);
	cached_begin(r);
	tools_begin(r);
	if (r->answer.ollama != NULL)
		gw_ollama_head(r, header_find(a, "content-encoding"));
	else
		head_send(r);
	gw_keepalive_head(r, header_find(a, "content-encoding").n > 0);
	/* There is no retry from here on: drop what only a retry needs, so that a long stream holds little. */
	gw_resume_keep(r);
	gw_calibration_offer(r);
	gw_body_drop(r);
	a->headers = NULL;
	a->n_headers = 0;
}

static void gap_count(struct gw_req *r, cgn_nsec now)
{
	if (r->answer.first_byte == 0)
		r->answer.first_byte = now;
	else if (r->answer.event_stream)
		gw_series_itl(r, cgn_since(now, r->answer.last_byte));
	r->answer.last_byte = now;
	gw_attempt_beat(&r->attempt);
}

void gw_relay(struct gw_req *r, struct cgn_str data)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf stripped = {0};
	if (r->client.x == NULL)
		return;
	gap_count(r, cgn_loop_now(r->w->loop));
	data = gw_cascade_stripped(r, data, &stripped);
	if (stripped.bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else if (r->answer.resume != NULL)
		gw_resume_relay(r, data);
	else
		gw_relay_bytes(r, data);
}

/* ---- the beginning of an answer ---- */

/* Remember the id of a response that begins with |lead|, and where the response is stored. Return false if the id is not
 * known yet. */
static bool id_learn(struct gw_req *r, struct cgn_str lead)
{
	const struct gw_attempt *a = &r->attempt;
	struct cgn_str id = answerhome_id(lead);
	if (id.n > 0 && r->answer.event_stream)
		r->answer.response_id = cgn_arena_str(&r->arena, id);
	if (id.n > 0 && a->peer == NULL && cgn_str_is(r->client.target, "/v1/responses"))
		answerhome_put(r->w->shared->tails,
			(struct answerhome_of){gw_isolation_id(r, id), r->prompt.model}, a->call.slot,
			a->ticket.node);
	return id.n > 0;
}

/* Cut |*lead| behind its first event. Return false if that is not whole. */
static bool event_first(struct cgn_str *lead)
{
	const char *lf = memmem(lead->p, lead->n, "\n\n", 2), *crlf = memmem(lead->p, lead->n, "\r\n\r\n", 4);
	const char *end = lf == NULL || (crlf != NULL && crlf < lf) ? crlf : lf;
	if (end != NULL)
		lead->n = (size_t)(end - lead->p);
	return end != NULL;
}

/* Learn the id of a stored answer from the first event of a stream, or from the first bytes of another answer, however they
 * are cut. */
static void lead_read(struct gw_req *r, struct cgn_str data)
{
	struct gw_answer *to = &r->answer;
	bool named = r->attempt.status == 200 && cgn_str_starts(r->client.target, "/v1/responses");
	if (to->led || !named)
		return;
	to->lead.limit = ANSWERHOME_WITHIN;
	size_t room = to->lead.limit - to->lead.n;
	cgn_buf_add(&to->lead, data.p, data.n < room ? data.n : room);
	struct cgn_str lead = cgn_buf_view(&to->lead);
	to->led = to->lead.bad || lead.n == to->lead.limit || (to->event_stream && event_first(&lead));
	if ((to->led || !to->event_stream) && id_learn(r, lead))
		to->led = true;
	if (to->led)
		cgn_buf_fini(&to->lead);
}

static void decoder_stop(struct gw_answer *to)
{
	coding_close(&to->decoder);
	to->unread = true;
}

/* Read the counts and the text of an answer from what passes. */
static void told_read(struct gw_answer *to, struct cgn_str data)
{
	char room[4096];
	size_t n = sizeof room;
	if (to->decoder == NULL && !to->unread)
		usagescan_feed(&to->told, data);
	while (to->decoder != NULL && n == sizeof room) {
		cgn_rc rc = coding_read(to->decoder, &data, room, sizeof room, &n, NULL);
		to->decoded += n;
		usagescan_feed(&to->told, (struct cgn_str){room, n});
		if (!cgn_ok(rc) || to->decoded > DECODED_LEAST + DECODED_TIMES * to->bytes_out)
			decoder_stop(to);
	}
}

/* Does nothing when |data| is empty: filters may hold back all that came. */
static void bytes_send(struct gw_req *r, struct cgn_str data)
{
	struct gw_answer *to = &r->answer;
	if (data.n == 0)
		return;
	if (to->unfit) {
		gw_keepalive_keep(r, data);
		return;
	}
	lead_read(r, data);
	if (to->tools != NULL)
		toolcall_feed(to->tools, data);
	if (to->ollama != NULL)
		gw_ollama_feed(r, data);
	else
		gw_events_send(r, data);
	to->bytes_out += data.n;
	if (r->client.route->kind != GW_STORED) { /* The answer was counted when it was made. */
		usage_tail_add(&to->tail, data.p, data.n);
		told_read(to, data);
	}
	gw_used_relayed(r, data);
	if (!to->paused && gw_call_is_open(&r->attempt.call) && http_exchange_over_mark(r->client.x)) {
		to->paused = to->was_paused = true;
		gw_call_pause(&r->attempt.call);
	}
}

/* Pass bytes up to a number that is not known yet, and keep the others. */
static void cached_feed(struct gw_req *r, struct cgn_str data, struct cgn_buf *out)
{
	struct gw_answer *to = &r->answer;
	size_t n = 0;
	if (to->held.n == 0)
		n = cached_filter_feed(to->cached, data, out);
	if (n == data.n)
		return;
	to->held.limit = GW_HELD_MAX;
	cgn_buf_add(&to->held, data.p + n, data.n - n);
	if (!to->held.bad)
		return;
	/* Too much to keep: the client gets the number as it is. */
	to->cached->waits = false;
	(void)cached_filter_feed(to->cached, cgn_buf_view(&to->held), out);
	(void)cached_filter_feed(to->cached, (struct cgn_str){data.p + n, data.n - n}, out);
	cgn_buf_fini(&to->held);
}

void gw_relay_release(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf out = {0};
	struct gw_answer *to = &r->answer;
	if (to->cached == NULL)
		return;
	to->cached->waits = false;
	if (to->held.n == 0)
		return;
	(void)cached_filter_feed(to->cached, cgn_buf_view(&to->held), &out);
	cgn_buf_fini(&to->held);
	if (r->client.x != NULL && !out.bad)
		bytes_send(r, cgn_buf_view(&out));
	else if (r->client.x != NULL)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
}

void gw_relay_bytes(struct gw_req *r, struct cgn_str data)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf renamed = {0};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf counted = {0};
	if (r->client.x == NULL || data.n == 0)
		return;
	if (r->answer.rename != NULL) {
		modelname_feed(r->answer.rename, data, &renamed);
		data = cgn_buf_view(&renamed);
	}
	if (r->answer.cached != NULL) {
		cached_feed(r, data, &counted);
		data = cgn_buf_view(&counted);
	}
	if (renamed.bad || counted.bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else
		bytes_send(r, data);
}

void gw_relay_finish(struct gw_req *r)
{
	gw_events_flush(r);
	if (r->answer.unfit)
		gw_keepalive_unfit(r);
	if (r->answer.ollama != NULL)
		gw_ollama_end(r);
	else
		gw_relay_close(r);
}

/* Send the bytes that were kept while a member was looked for: the answer has ended in the middle of a
 * document. */
static void stripped_flush(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf rest = {0};
	gw_cascade_flush(r, &rest);
	if (r->answer.resume != NULL && rest.n > 0)
		gw_resume_relay(r, cgn_buf_view(&rest));
	else
		gw_relay_bytes(r, cgn_buf_view(&rest));
}

/* Send the kept part of a usage object: the answer has ended in the middle of it. */
static void cached_flush(struct gw_req *r)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf rest = {0};
	if (r->answer.cached == NULL || r->client.x == NULL)
		return;
	cached_filter_end(r->answer.cached, &rest);
	if (rest.bad)
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
	else
		bytes_send(r, cgn_buf_view(&rest));
}

enum gw_step gw_relay_end(struct gw_req *r)
{
	stripped_flush(r);
	gw_resume_flush(r);
	cached_flush(r);
	gw_relay_finish(r);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}

static void error_event_send(struct gw_req *r, const char *message)
{
	static const struct gw_refusal died = {502, "server_error", "engine_failed"};
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf b = {0};
	gw_refusal_event(r, &died, message, NULL, &b);
	if (b.bad) {
		http_exchange_abort(r->client.x, CGN_NO_MEMORY);
		return;
	}
	const struct iovec iov = {b.p, b.n};
	http_exchange_body(r->client.x, &iov, 1);
	gw_relay_close(r);
}

/* Return the client's message about an answer that broke off. Lives as long as the request. */
static const char *cut_message(struct gw_req *r)
{
	const char *why = r->answer.cut_for;
	const char *text = why == NULL
		? NULL
		: cgn_arena_fmt(&r->arena, ENGINE_DIED ", and the answer was not continued: %s", why);
	return text != NULL ? text : ENGINE_DIED;
}

/* Return true if the answer's last event is the end marker. A connection that breaks behind it has lost nothing. */
static bool is_marked_done(const struct gw_req *r)
{
	static const char *const marks[] = {"data: [DONE]", "data:[DONE]", "\"message_stop\"}"};
	struct cgn_str tail = usage_tail_view(&r->answer.tail);
	while (tail.n > 0 && (tail.p[tail.n - 1] == '\n' || tail.p[tail.n - 1] == '\r'))
		tail.n--;
	for (size_t i = 0; r->answer.event_stream && i < CGN_COUNT(marks); i++) {
		size_t n = strlen(marks[i]);
		if (tail.n >= n && memcmp(tail.p + tail.n - n, marks[i], n) == 0)
			return true;
	}
	return false;
}

/* Send the rest of the blank line behind the end marker, in the stream's own line ends: without it a client drops the
 * event. */
static void marker_complete(struct gw_req *r)
{
	struct cgn_str tail = usage_tail_view(&r->answer.tail);
	const struct cgn_str blank =
		memmem(tail.p, tail.n, "\r\n", 2) != NULL ? CGN_STR("\r\n\r\n") : CGN_STR("\n\n");
	size_t sent = 0;
	while (sent < tail.n && strchr("\r\n", tail.p[tail.n - sent - 1]) != NULL)
		sent++;
	if (sent < blank.n)
		bytes_send(r, (struct cgn_str){blank.p + sent, blank.n - sent});
}

enum gw_step gw_relay_cut(struct gw_req *r, const char *why)
{
	CGN_MUST(r->answer.head_sent);
	if (is_marked_done(r)) {
		marker_complete(r);
		return gw_relay_end(r);
	}
	cgn_log_limited(WARN, "gateway.stream_cut", F_STRN("id", r->client.id),
		F_STR("node", r->attempt.call.node_id), F_STR("why", why),
		F_U64("bytes", r->answer.bytes_out));
	r->answer.outcome = "cut";
	const char *message = cut_message(r);
	bool ends_with_event = gw_events_cut(r);
	if (gw_hold_is_on(r))
		gw_hold_cut(r, message);
	else if (r->answer.ollama != NULL)
		gw_ollama_cut(r, message);
	else if (ends_with_event && (r->answer.event_stream || r->answer.early))
		error_event_send(r, message);
	else
		http_exchange_abort(r->client.x, CGN_BAD_GATEWAY);
	gw_goto(r, GW_ANSWER);
	return STEP_AGAIN;
}
