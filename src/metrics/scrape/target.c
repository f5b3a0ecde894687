/* SPDX-License-Identifier: Apache-2.0 */
/* target: asks one target again and again. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/mix/mix.h"
#include "base/pb/pb.h"
#include "cognitora/v1/metrics.pb-c.h"
#include "io/os/disk/disk.h"
#include "joint/report/telemetry/scrape.h"
#include "joint/web/webclient/webclient.h"
#include "metrics/metrics.h"
#include "metrics/scrape/scrape_priv.h"

#define WAIT_FOR_TURN (50 * CGN_MSEC) /* Before another try while SCRAPE_AT_ONCE are asked */
#define FIRST_SPREAD \
	(2 * CGN_SEC) /* The first rounds begin within this time, or the interval if it is less. */
#define TOKEN_BYTES 1024

const char *const scrape_kinds[] = {"given", "router", "agent", "store"};
static const char *const failure_names[] = {"unreachable", "late", "large", "status", "memory"};

/* ---- pages ---- */

void scrape_page_drop(struct scrape_page **take)
{
	struct scrape_page *p = CGN_TAKE(take);
	if (p == NULL || --p->refs > 0)
		return;
	exposition_page_free(&p->page);
	free(p);
}

static void page_forget(struct scrape_target *t)
{
	if (t->page == NULL)
		return;
	t->all->held -= exposition_page_bytes(t->page->page);
	scrape_page_drop(&t->page);
}

void scrape_target_age(struct scrape_target *t, cgn_nsec now)
{
	const struct scrape_limits *l = &t->all->limits;
	if (t->page != NULL && cgn_since(now, t->read_at) > 3 * l->interval + l->timeout)
		page_forget(t);
}

/* ---- rounds ---- */

static void gauges_set(struct scrape_target *t)
{
	struct telemetry *m = t->all->telemetry;
	const char *name = t->where.name;
	metric_set(METRIC_OF(m, SCRAPE_UP, name), t->up);
	metric_set(METRIC_OF(m, SCRAPE_SECONDS, name), (double)t->took / (double)CGN_SEC);
	if (!t->up)
		return;
	metric_set(METRIC_OF(m, SCRAPE_BYTES, name), (double)t->bytes);
	metric_set(METRIC_OF(m, SCRAPE_SAMPLES, name), (double)t->stats.samples);
	metric_set(METRIC_OF(m, SCRAPE_LEFT_OUT, name, "invalid"), (double)t->stats.skipped);
	metric_set(METRIC_OF(m, SCRAPE_LEFT_OUT, name, "most"), (double)t->stats.cut);
}

static void round_end(struct scrape_target *t)
{
	cgn_nsec now = cgn_loop_now(t->all->loop), next = t->since + t->all->limits.interval;
	t->took = cgn_since(now, t->since);
	t->asking = false;
	t->all->asking--;
	gauges_set(t);
	cgn_timer_set(&t->timer, next > now ? next - now : 0);
}

static void round_fail(struct scrape_target *t, enum scrape_failure what, const char *why)
{
	t->up = false;
	(void)cgn_str_copyz(t->why, sizeof t->why, cgn_str_of(why));
	metric_add(METRIC_OF(t->all->telemetry, SCRAPE_FAILURES, t->where.name, failure_names[what]), 1);
	round_end(t);
}

/* Write why a text that was read is not used as it is, or "". */
static void page_why(struct scrape_target *t)
{
	const struct exposition_stats *st = &t->stats;
	t->why[0] = '\0';
	if (st->cut > 0)
		(void)snprintf(t->why, sizeof t->why,
			"%zu samples are left out: it has more than metrics.scrape_max_samples", st->cut);
	else if (st->skipped > 0)
		(void)snprintf(t->why, sizeof t->why, "%zu lines are not samples and are left out",
			st->skipped);
}

/* Pass the samples of agents and of given targets on, each with its node; the names of agents begin with
 * their kind. */
static void text_tell(struct scrape_target *t, struct cgn_str text)
{
	const struct scrape *s = t->all;
	const char *name = t->where.name;
	if (t->where.kind == SCRAPE_AGENT)
		name += strlen(scrape_kinds[SCRAPE_AGENT]) + 1;
	if (s->on_text != NULL && (t->where.kind == SCRAPE_AGENT || t->where.kind == SCRAPE_GIVEN))
		s->on_text(s->listener, name, text, 3 * s->limits.interval + s->limits.timeout);
}

static void text_take(struct scrape_target *t, struct cgn_str text)
{
	struct scrape *s = t->all;
	struct exposition_stats stats;
	struct cgn_err err;
	struct scrape_page *fresh = CGN_NEW(struct scrape_page);
	const struct exposition_cfg cfg = {.target = cgn_str_of(t->where.name),
		.instance = cgn_str_of(t->url.authority[0] != '\0' ? t->url.authority : t->where.url),
		.max_samples = s->limits.max_samples};
	if (!cgn_ok(exposition_page_make(text, &cfg, &fresh->page, &stats, &err))) {
		free(fresh);
		round_fail(t, SCRAPE_NO_ROOM, "there is no memory for its text");
		return;
	}
	fresh->refs = 1;
	size_t bytes = exposition_page_bytes(fresh->page), own = 0;
	if (t->page != NULL)
		own = exposition_page_bytes(t->page->page);
	if (stats.samples == 0 && stats.skipped > 0) {
		scrape_page_drop(&fresh);
		round_fail(t, SCRAPE_STATUS, "its answer is not a Prometheus text: no line is a sample");
	} else if (s->held - own + bytes > s->limits.memory) {
		scrape_page_drop(&fresh);
		round_fail(t, SCRAPE_NO_ROOM, "the texts of all targets take metrics.scrape_memory already");
	} else {
		page_forget(t);
		t->page = fresh;
		s->held += bytes;
		t->stats = stats;
		t->bytes = text.n;
		t->up = true;
		t->read_at = cgn_loop_now(s->loop);
		text_tell(t, text);
		page_why(t);
		round_end(t);
	}
}

static void failure_take(struct scrape_target *t, const struct cgn_err *err)
{
	char why[200];
	const struct scrape_limits *l = &t->all->limits;
	if (err->code == CGN_DEADLINE) {
		(void)snprintf(why, sizeof why,
			"its answer was not whole within %g s (metrics.scrape_timeout)",
			(double)l->timeout / (double)CGN_SEC);
		round_fail(t, SCRAPE_LATE, why);
	} else if (err->code == CGN_TOO_LARGE) {
		(void)snprintf(why, sizeof why,
			"its answer is longer than %" PRIu64 " bytes (metrics.scrape_max_bytes)",
			l->max_bytes);
		round_fail(t, SCRAPE_LARGE, why);
	} else {
		round_fail(t, SCRAPE_UNREACHABLE, err->msg);
	}
}

static void on_http_answer(void *user, const struct webask_answer *a)
{
	struct scrape_target *t = user;
	char why[100];
	CGN_LIVE(t, SCRAPE_TARGET_TAG);
	t->ask = NULL;
	if (webask_is_ok(a)) {
		text_take(t, a->body);
		return;
	}
	if (a->err->code != CGN_FINE) {
		failure_take(t, a->err);
		return;
	}
	(void)snprintf(why, sizeof why, "it answers with status %d%s", a->status,
		a->status >= 300 && a->status < 400            ? ", and redirects are not followed"
			: a->status == 401 || a->status == 403 ? ": set token_file of the target"
							       : "");
	round_fail(t, SCRAPE_STATUS, why);
}

static void on_grpc_answer(void *user, const struct grpc_unary_result *r)
{
	struct scrape_target *t = user;
	struct cgn_err err = *r->err;
	CGN_ON_EXIT(pb_free) Cognitora__V1__ScrapeResponse *m = NULL;
	CGN_LIVE(t, SCRAPE_TARGET_TAG);
	if (t->closing)
		return;
	if (err.code == CGN_FINE &&
		cgn_ok(pb_unpack(&cognitora__v1__scrape_response__descriptor,
			(struct cgn_str){(const char *)r->p, r->n}, &m, &err)))
		text_take(t, cgn_str_of(m->text));
	else
		failure_take(t, &err);
}

/* Read the token again: it may have been renewed. */
static CGN_RC token_read(struct scrape_target *t, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	if (t->where.token_file == NULL)
		return CGN_OK;
	CGN_TRY(disk_read_file(t->where.token_file, TOKEN_BYTES, &text, err));
	struct cgn_str rest = cgn_buf_view(&text), token = cgn_str_trim(cgn_str_split(&rest, '\n'));
	for (size_t i = 0; i < token.n; i++)
		if (token.p[i] < '!' || token.p[i] > '~')
			return CGN_FAIL(err, INVALID, "%s: the first line is not a token",
				t->where.token_file);
	(void)snprintf(t->authorization, sizeof t->authorization, "Bearer %.*s", CGN_STR_ARG(token));
	return CGN_OK;
}

static CGN_RC http_ask(struct scrape_target *t, struct cgn_err *err)
{
	const struct scrape_limits *l = &t->all->limits;
	CGN_TRY(token_read(t, err));
	const struct webask_endpoint to = {.client = t->http,
		.url = &t->url,
		.authorization = t->authorization[0] != '\0' ? t->authorization : NULL};
	const struct webask_question ask = {.path = t->path,
		.max_bytes = l->max_bytes,
		.timeout = l->timeout};
	return webask_start(t->all->loop, &to, &ask, on_http_answer, t, &t->ask, err);
}

static void on_round_timer(struct cgn_timer *timer)
{
	struct scrape_target *t = CGN_CONTAINER(timer, struct scrape_target, timer);
	struct scrape *s = t->all;
	struct cgn_err err = {0};
	CGN_LIVE(t, SCRAPE_TARGET_TAG);
	if (s->asking >= SCRAPE_AT_ONCE) {
		cgn_timer_set(timer, WAIT_FOR_TURN);
		return;
	}
	t->since = cgn_loop_now(s->loop);
	t->asking = true;
	s->asking++;
	cgn_rc rc = t->http != NULL ? http_ask(t, &err)
				    : grpc_unary(t->grpc, SCRAPE_PATH, (struct cgn_str){"", 0},
					      s->limits.timeout, on_grpc_answer, t, &err);
	if (!cgn_ok(rc))
		round_fail(t, SCRAPE_UNREACHABLE, err.msg);
}

/* ---- open and close ---- */

static struct webclient_cfg client_cfg(const struct scrape_where *w, cgn_nsec timeout)
{
	return (struct webclient_cfg){.url = w->url,
		.ca_file = w->ca_file,
		.fingerprint = w->fingerprint,
		.max_conns = 1,
		.connect_timeout = timeout};
}

CGN_RC scrape_target_check(const struct scrape_where *w, struct cgn_err *err)
{
	const struct webclient_cfg client = client_cfg(w, CGN_SEC);
	if (w->url == NULL)
		return CGN_FAIL(err, INVALID, "scrape_targets.\"%s\".url is missing", w->name);
	return cgn_err_of(webclient_check(&client, err), w->name, err);
}

static CGN_RC http_open(struct scrape_target *t, struct cgn_err *err)
{
	const struct webclient_cfg client = client_cfg(&t->where, t->all->limits.timeout);
	CGN_TRY(webclient_open(t->all->loop, &client, &t->url, &t->http, err));
	(void)snprintf(t->path, sizeof t->path, "%s", t->url.base[0] != '\0' ? t->url.base : "/metrics");
	t->url.base[0] = '\0';
	t->url.base_is_version = false;
	return CGN_OK;
}

static CGN_RC grpc_open(struct scrape_target *t, struct cgn_err *err)
{
	const struct scrape_limits *l = &t->all->limits;
	const struct grpc_channel_cfg cfg = {.addr = t->where.url,
		.tls = t->all->tls,
		.server_name = t->where.kind == SCRAPE_ROUTER ? NULL : t->all->node_name,
		.max_message = l->max_bytes < UINT32_MAX ? (uint32_t)l->max_bytes : UINT32_MAX,
		.connect_timeout = l->timeout,
		.wide = true};
	return grpc_channel_new(t->all->loop, &cfg, &t->grpc, err);
}

/* Copy the strings of |w| into one piece of memory. */
static void where_copy(struct scrape_target *t, const struct scrape_where *w)
{
	const char *from[] = {w->name, w->url, w->ca_file, w->fingerprint, w->token_file};
	const char **to[] = {&t->where.name, &t->where.url, &t->where.ca_file, &t->where.fingerprint,
		&t->where.token_file};
	size_t n = 0;
	for (size_t i = 0; i < CGN_COUNT(from); i++)
		n += from[i] != NULL ? strlen(from[i]) + 1 : 0;
	char *at = t->text = CGN_NEW_ARRAY(char, n);
	t->where.kind = w->kind;
	for (size_t i = 0; i < CGN_COUNT(from); i++) {
		if (from[i] == NULL)
			continue;
		*to[i] = strcpy(at, from[i]);
		at += strlen(at) + 1;
	}
}

static void target_release(struct cgn_grave *g)
{
	struct scrape_target *t = CGN_CONTAINER(g, struct scrape_target, grave);
	t->tag = 0;
	free(t->text);
	free(t);
}

static void target_insert(struct scrape *s, struct scrape_target *t)
{
	struct cgn_link *before = &s->targets;
	cgn_list_each (l, &s->targets) {
		const struct scrape_target *other = CGN_CONTAINER(l, struct scrape_target, link);
		if (strcmp(other->where.name, t->where.name) > 0) {
			before = l;
			break;
		}
	}
	cgn_list_push(before, &t->link); /* At the tail of a ring that begins there: in front of it. */
	s->n++;
}

CGN_RC scrape_target_add(struct scrape *s, const struct scrape_where *w, struct scrape_target **out,
	struct cgn_err *err)
{
	if (s->n == SCRAPE_MOST)
		return CGN_FAIL(err, OVERLOADED, "there are more than %u targets", SCRAPE_MOST);
	struct scrape_target *t = CGN_NEW(struct scrape_target);
	t->tag = SCRAPE_TARGET_TAG;
	t->all = s;
	cgn_timer_init(&t->timer, s->loop, on_round_timer);
	where_copy(t, w);
	cgn_rc rc = w->kind == SCRAPE_GIVEN ? http_open(t, err) : grpc_open(t, err);
	if (!cgn_ok(rc)) {
		target_release(&t->grave);
		return rc;
	}
	target_insert(s, t);
	cgn_nsec spread = s->limits.interval < FIRST_SPREAD ? s->limits.interval : FIRST_SPREAD;
	cgn_timer_set(&t->timer, mix64((uint64_t)(uintptr_t)t) % spread);
	*out = t;
	return CGN_OK;
}

void scrape_target_drop(struct scrape_target *t)
{
	struct scrape *s = t->all;
	CGN_LIVE(t, SCRAPE_TARGET_TAG);
	t->closing = true;
	cgn_timer_cancel(&t->timer);
	webask_cancel(&t->ask);
	if (t->http != NULL)
		http_client_free(&t->http);
	if (t->grpc != NULL)
		grpc_channel_free(&t->grpc);
	s->asking -= t->asking;
	page_forget(t);
	cgn_list_drop(&t->link);
	s->n--;
	telemetry_forget(s->telemetry, "target", t->where.name);
	cgn_loop_bury(s->loop, &t->grave, target_release);
}

struct scrape_target *scrape_target_find(struct scrape *s, const char *name)
{
	cgn_list_each (l, &s->targets) {
		struct scrape_target *t = CGN_CONTAINER(l, struct scrape_target, link);
		if (strcmp(t->where.name, name) == 0)
			return t;
	}
	return NULL;
}

static bool same_text(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

bool scrape_target_is(const struct scrape_target *t, const struct scrape_where *w)
{
	const struct scrape_where *own = &t->where;
	return own->kind == w->kind && same_text(own->url, w->url) && same_text(own->ca_file, w->ca_file) &&
		same_text(own->fingerprint, w->fingerprint) && same_text(own->token_file, w->token_file);
}
