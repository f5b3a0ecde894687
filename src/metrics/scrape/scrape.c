/* SPDX-License-Identifier: Apache-2.0 */
/* scrape: the list of targets. */
#include "metrics/scrape/scrape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log/log.h"
#include "io/net/tls/tls.h"
#include "joint/cluster/state/state.h"
#include "metrics/metrics.h"
#include "metrics/scrape/scrape_priv.h"

/* ---- settings ---- */

static struct scrape_where where_of(const struct config_scrape_target *c)
{
	return (struct scrape_where){.kind = SCRAPE_GIVEN,
		.name = c->name,
		.url = c->url,
		.ca_file = c->ca_file,
		.fingerprint = c->fingerprint,
		.token_file = c->token_file};
}

static struct scrape_limits limits_of(const struct config *cfg)
{
	return (struct scrape_limits){.interval = cfg->metrics.scrape_interval,
		.timeout = cfg->metrics.scrape_timeout,
		.max_bytes = cfg->metrics.scrape_max_bytes,
		.memory = cfg->metrics.scrape_memory,
		.max_samples = cfg->metrics.scrape_max_samples};
}

CGN_RC scrape_check(const struct config *cfg, struct cgn_err *err)
{
	for (size_t i = 0; i < cfg->n_scrape_targets; i++) {
		struct scrape_where w = where_of(&cfg->scrape_targets[i]);
		CGN_TRY(cgn_err_of(scrape_target_check(&w, err), "scrape_targets", err));
	}
	if (cfg->metrics.scrape_timeout > cfg->metrics.scrape_interval)
		return CGN_FAIL(err, INVALID,
			"metrics.scrape_timeout is longer than metrics.scrape_interval");
	return CGN_OK;
}

/* Is there a row for the target? */
static bool is_given(const struct config *cfg, const struct scrape_target *t)
{
	for (size_t i = 0; i < cfg->n_scrape_targets; i++) {
		struct scrape_where w = where_of(&cfg->scrape_targets[i]);
		if (strcmp(w.name, t->where.name) == 0)
			return scrape_target_is(t, &w);
	}
	return false;
}

static void given_drop(struct scrape *s, const struct config *cfg)
{
	cgn_list_each_safe (l, &s->targets) {
		struct scrape_target *t = CGN_CONTAINER(l, struct scrape_target, link);
		if (t->where.kind == SCRAPE_GIVEN && !is_given(cfg, t))
			scrape_target_drop(t);
	}
}

/* Open missing targets. On failure the opened ones stay; the caller drops them. */
static CGN_RC given_add(struct scrape *s, const struct config *cfg, struct cgn_err *err)
{
	for (size_t i = 0; i < cfg->n_scrape_targets; i++) {
		struct scrape_where w = where_of(&cfg->scrape_targets[i]);
		struct scrape_target *t = scrape_target_find(s, w.name);
		if (t != NULL)
			continue;
		CGN_TRY(cgn_err_of(scrape_target_add(s, &w, &t, err), "scrape_targets", err));
	}
	return CGN_OK;
}

/* ---- time ---- */

static void gauges_write(struct scrape *s)
{
	size_t up = 0, stale = 0;
	cgn_list_each (l, &s->targets) {
		const struct scrape_target *t = CGN_CONTAINER(l, struct scrape_target, link);
		up += t->up;
		stale += !t->up && t->page != NULL;
	}
	metric_set(METRIC_OF(s->telemetry, SCRAPE_TARGETS, "up"), (double)up);
	metric_set(METRIC_OF(s->telemetry, SCRAPE_TARGETS, "stale"), (double)stale);
	metric_set(METRIC_OF(s->telemetry, SCRAPE_TARGETS, "down"), (double)(s->n - up - stale));
	metric_set(METRIC_ONE(s->telemetry, SCRAPE_MEMORY), (double)s->held);
}

static void on_tick(struct cgn_timer *timer)
{
	struct scrape *s = CGN_CONTAINER(timer, struct scrape, tick);
	CGN_LIVE(s, SCRAPE_TAG);
	cgn_list_each (l, &s->targets)
		scrape_target_age(CGN_CONTAINER(l, struct scrape_target, link), cgn_loop_now(s->loop));
	gauges_write(s);
	cgn_timer_set(timer, CGN_SEC);
}

/* ---- life ---- */

CGN_RC scrape_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct scrape **out,
	struct cgn_err *err)
{
	CGN_TRY(scrape_check(cfg, err));
	struct scrape *s = CGN_NEW(struct scrape);
	*s = (struct scrape){.tag = SCRAPE_TAG, .loop = l, .telemetry = t, .limits = limits_of(cfg)};
	s->node_name = cfg->security.node_name;
	cgn_list_init(&s->targets);
	cgn_timer_init(&s->tick, l, on_tick);
	cgn_rc rc = state_tls_client(cfg, &s->tls, err);
	if (cgn_ok(rc))
		rc = given_add(s, cfg, err);
	if (cgn_ok(rc))
		rc = scrape_discover_open(s, cfg, err);
	if (!cgn_ok(rc)) {
		scrape_close(&s);
		return rc;
	}
	cgn_timer_set(&s->tick, 0);
	*out = s;
	return CGN_OK;
}

CGN_RC scrape_reload(struct scrape *s, const struct config *cfg, struct cgn_err *err)
{
	CGN_LIVE(s, SCRAPE_TAG);
	CGN_TRY(scrape_check(cfg, err));
	if (s->tls != NULL)
		CGN_TRY(tls_ctx_reload(s->tls, err));
	s->limits = limits_of(cfg);
	given_drop(s, cfg);
	return given_add(s, cfg, err);
}

void scrape_listen(struct scrape *s, scrape_on_text *fn, void *user)
{
	CGN_LIVE(s, SCRAPE_TAG);
	s->on_text = fn;
	s->listener = user;
}

void scrape_close(struct scrape **take)
{
	struct scrape *s = CGN_TAKE_LIVE(take, SCRAPE_TAG);
	if (s == NULL)
		return;
	cgn_timer_cancel(&s->tick);
	scrape_discover_close(s);
	cgn_list_each_safe (l, &s->targets)
		scrape_target_drop(CGN_CONTAINER(l, struct scrape_target, link));
	tls_ctx_free(&s->tls);
	s->tag = 0;
	free(s);
}

/* ---- reports ---- */

struct scrape_page **scrape_pages(struct scrape *s, size_t *n)
{
	struct scrape_page **pages = CGN_NEW_ARRAY(struct scrape_page *, s->n);
	CGN_LIVE(s, SCRAPE_TAG);
	*n = 0;
	cgn_list_each (l, &s->targets) {
		struct scrape_target *t = CGN_CONTAINER(l, struct scrape_target, link);
		if (t->page == NULL)
			continue;
		t->page->refs++;
		pages[(*n)++] = t->page;
	}
	return pages;
}

void scrape_pages_drop(struct scrape_page ***take, size_t n)
{
	struct scrape_page **pages = *take;
	*take = NULL;
	for (size_t i = 0; pages != NULL && i < n; i++)
		scrape_page_drop(&pages[i]);
	free(pages);
}

static void target_fill(const struct scrape_target *t, cgn_nsec now, Cognitora__V1__Target *to)
{
	to->name = pb_text(t->where.name);
	to->kind = pb_text(scrape_kinds[t->where.kind]);
	to->url = pb_text(t->where.url);
	to->state = pb_text(t->up           ? "up"
			: t->page != NULL   ? "stale"
			: t->why[0] == '\0' ? "starting"
					    : "down");
	to->why = pb_text(t->why);
	to->age_ms = t->read_at > 0 ? (double)(cgn_since(now, t->read_at) / CGN_MSEC) : (double)NAN;
	to->took_ms = t->took / CGN_MSEC;
	to->bytes = t->bytes;
	to->samples = t->stats.samples;
	to->invalid_lines = t->stats.skipped;
	to->left_out = t->stats.cut;
}

void scrape_fill(struct scrape *s, struct pb_tree *t, Cognitora__V1__Targets *to)
{
	CGN_LIVE(s, SCRAPE_TAG);
	to->interval_ms = s->limits.interval / CGN_MSEC;
	to->memory_bytes = s->held;
	cgn_list_each (l, &s->targets)
		target_fill(CGN_CONTAINER(l, struct scrape_target, link), cgn_loop_now(s->loop),
			PB_ADD(t, to, targets, target));
}
