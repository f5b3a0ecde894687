/* SPDX-License-Identifier: Apache-2.0 */
/* ask: the thread that asks prompts again, of the small model, then of the large one, and where their texts differ of
 * a judge. One prompt at a time. */
#include <math.h>
#include <stdlib.h>

#include "io/os/loop/loop.h"
#include "io/wire/http/client.h"
#include "policy/answer/cascade/cascade.h"
#include "policy/answer/cascade/compare.h"
#include "router/request/calibration/calibration_priv.h"
#include "router/shared/worker/shared.h"

#define ASKER_TAG  0x64ca11a5U
#define TRIES      5                /* tries of a turn while no node has room */
#define TRY_BEFORE (250 * CGN_MSEC) /* The second try; the time before each further one is twice as long. */

enum turn { TURN_SMALL, TURN_LARGE, TURN_JUDGE, TURNS };

struct gw_calibration_asker {
	uint32_t tag;
	struct gw_calibration_asker_cfg cfg;
	struct cgn_loop *loop;
	struct http_client *client;
	struct cgn_post wake, stop;
	struct cgn_timer again;            /* set: no node had room */
	unsigned tries;                    /* tries of the current turn that found no room */
	struct calibration_sample *sample; /* NULL: none is being asked */
	enum turn turn;
	double doubt; /* doubt of the small model's answer */
	struct http_call *call;
	int status;
	struct cgn_buf answers[TURNS], judged; /* |judged|: the judge's question */
	uint64_t number;
	bool stopping;
};

static void sample_begin(struct gw_calibration_asker *a);

static void sample_end(struct gw_calibration_asker *a, const char *outcome)
{
	calibration_count(a->cfg.shared->calibrations, outcome);
	calibration_sample_free(&a->sample);
	for (enum turn i = 0; i < TURNS; i++)
		cgn_buf_fini(&a->answers[i]);
	cgn_buf_fini(&a->judged);
	if (!a->stopping)
		sample_begin(a);
}

static void turn_begin(struct gw_calibration_asker *a);

/* No node had room: try |a|'s turn again a little later, and then wait behind all clients. */
static void turn_put_off(struct gw_calibration_asker *a)
{
	if (++a->tries < TRIES)
		cgn_timer_set(&a->again, TRY_BEFORE << (a->tries - 1));
	else
		sample_end(a, "busy");
}

static void asker_on_again(struct cgn_timer *t)
{
	struct gw_calibration_asker *a = CGN_CONTAINER(t, struct gw_calibration_asker, again);
	CGN_LIVE(a, ASKER_TAG);
	turn_begin(a);
}

static void sample_learn(struct gw_calibration_asker *a, bool wrong)
{
	calibration_learn(a->cfg.shared->calibrations, a->sample, a->doubt, wrong);
	sample_end(a, "compared");
}

/* Read how unsure the small model's answer is. False: it has no log-probabilities. */
static bool doubt_read(struct gw_calibration_asker *a)
{
	struct cascade_answer small;
	cascade_answer_init(&small, a->sample->tokens);
	cascade_answer_document(&small, cgn_buf_view(&a->answers[TURN_SMALL]));
	a->doubt = cascade_doubt(&small);
	bool read = small.n > 0 && !small.broken;
	cascade_answer_fini(&small);
	return read;
}

static void answers_compare(struct gw_calibration_asker *a)
{
	struct cgn_str x = cgn_buf_view(&a->answers[TURN_SMALL]), y = cgn_buf_view(&a->answers[TURN_LARGE]);
	enum cascade_likeness is = cascade_compare(x, y);
	if (!doubt_read(a) || is == CASCADE_UNKNOWN) {
		sample_end(a, "unclear");
	} else if (is == CASCADE_DIFFERENT && a->cfg.judge_model != NULL) {
		cascade_judge_body(x, y, cgn_str_of(a->cfg.judge_model), &a->judged);
		a->turn = TURN_JUDGE;
		turn_begin(a);
	} else {
		sample_learn(a, is != CASCADE_SAME);
	}
}

static void similarity_compare(struct gw_calibration_asker *a)
{
	double cosine = cascade_similarity(cgn_buf_view(&a->answers[TURN_JUDGE]));
	if (isnan(cosine))
		sample_end(a, "unclear");
	else
		sample_learn(a, cosine < a->cfg.judge_similarity);
}

static void turn_end(struct gw_calibration_asker *a)
{
	a->tries = 0;
	if (a->turn == TURN_SMALL) {
		a->turn = TURN_LARGE;
		turn_begin(a);
	} else if (a->turn == TURN_LARGE) {
		answers_compare(a);
	} else {
		similarity_compare(a);
	}
}

static void on_head(struct http_call *call, void *user, const struct http_head *h)
{
	(void)call;
	((struct gw_calibration_asker *)user)->status = h->status;
}

static void on_body(struct http_call *call, void *user, const uint8_t *p, size_t n)
{
	struct gw_calibration_asker *a = user;
	(void)call;
	cgn_buf_add(&a->answers[a->turn], p, n);
}

static void on_end(struct http_call *call, void *user, const struct http_field *trailers, size_t n)
{
	struct gw_calibration_asker *a = user;
	(void)call;
	(void)trailers;
	(void)n;
	a->call = NULL;
	if (a->status == 429 || a->status == 503)
		turn_put_off(a);
	else if (a->status != 200 || a->answers[a->turn].bad)
		sample_end(a, "failed");
	else
		turn_end(a);
}

static void on_fail(struct http_call *call, void *user, enum http_fail_stage stage, const struct cgn_err *why)
{
	struct gw_calibration_asker *a = user;
	(void)call;
	(void)why;
	a->call = NULL;
	if (stage == HTTP_FAIL_STALE)
		turn_begin(a); /* The gateway had closed the idle connection. */
	else
		sample_end(a, "failed");
}

static const struct http_call_ops call_ops = {
	.on_head = on_head,
	.on_body = on_body,
	.on_end = on_end,
	.on_fail = on_fail,
};

static const char *path_of(const struct gw_calibration_asker *a)
{
	if (a->turn == TURN_JUDGE)
		return "/v1/embeddings";
	return a->sample->api == PROMPT_CHAT ? "/v1/chat/completions" : "/v1/completions";
}

static void turn_begin(struct gw_calibration_asker *a)
{
	const struct calibration_sample *s = a->sample;
	const struct cgn_buf *body = a->turn == TURN_JUDGE ? &a->judged : &s->bodies[a->turn];
	char bearer[CALIBRATION_PASS_MAX + CALIBRATION_NAME_MAX + 8], id[48];
	(void)snprintf(bearer, sizeof bearer, "Bearer %s%s", calibration_pass(a->cfg.shared->calibrations),
		s->tenant);
	(void)snprintf(id, sizeof id, "calibration-%llu-%u", (unsigned long long)a->number, a->turn + 1);
	a->answers[a->turn].n = 0;
	a->answers[a->turn].limit = CALIBRATION_ANSWER_MAX;
	const struct http_field fields[] = {{CGN_STR("content-type"), CGN_STR("application/json")},
		{CGN_STR("x-cgn-priority"), CGN_STR("0")}, {CGN_STR("x-cgn-cascade"), CGN_STR("off")},
		{CGN_STR("x-request-id"), cgn_str_of(id)}, {CGN_STR("authorization"), cgn_str_of(bearer)},
		{CGN_STR("prefer"), CGN_STR("if-available")}};
	const struct iovec iov = {body->p, body->n};
	const struct http_request rq = {.method = "POST",
		.path = path_of(a),
		.fields = fields,
		.n_fields = CGN_COUNT(fields) - (a->tries > 0), /* A later try waits. */
		.body_len = (int64_t)body->n,
		.head_timeout = CALIBRATION_CALL_LIMIT,
		.idle_timeout = CALIBRATION_CALL_LIMIT,
		.body = &iov,
		.n_body = 1};
	struct cgn_err err;
	if (!cgn_ok(http_call_start(a->client, &rq, &call_ops, a, &a->call, &err)))
		sample_end(a, "failed");
}

static void sample_begin(struct gw_calibration_asker *a)
{
	if (a->sample != NULL || atomic_load_explicit(&a->cfg.shared->draining, memory_order_relaxed))
		return;
	a->sample = calibration_take(a->cfg.shared->calibrations);
	a->turn = TURN_SMALL;
	a->tries = 0;
	a->number++;
	if (a->sample != NULL)
		turn_begin(a);
}

/* ---- the thread ---- */

static void asker_on_wake(struct cgn_loop *l, struct cgn_post *p)
{
	struct gw_calibration_asker *a = CGN_CONTAINER(p, struct gw_calibration_asker, wake);
	(void)l;
	CGN_LIVE(a, ASKER_TAG);
	calibration_woken(a->cfg.shared->calibrations);
	if (!a->stopping)
		sample_begin(a);
}

CGN_RC gw_calibration_asker_new(const struct gw_calibration_asker_cfg *cfg, struct gw_calibration_asker **out,
	struct cgn_err *err)
{
	struct gw_calibration_asker *a = CGN_NEW(struct gw_calibration_asker);
	a->tag = ASKER_TAG;
	a->cfg = *cfg;
	const struct http_client_cfg http = {.addr = cfg->addr,
		.tls = cfg->tls,
		.server_name = cfg->server_name,
		.max_conns = 1};
	cgn_rc rc = cgn_loop_new(&a->loop, err);
	if (cgn_ok(rc))
		rc = http_client_new(a->loop, &http, &a->client, err);
	if (cgn_ok(rc))
		rc = cgn_loop_start_thread(a->loop, "calibration", err);
	if (cgn_ok(rc)) {
		cgn_timer_init(&a->again, a->loop, asker_on_again);
		calibration_wake(cfg->shared->calibrations, a->loop, &a->wake, asker_on_wake);
		*out = a;
		return rc;
	}
	if (a->client != NULL)
		http_client_free(&a->client);
	if (a->loop != NULL)
		cgn_loop_free(&a->loop);
	free(a);
	return rc;
}

static void asker_on_stop(struct cgn_loop *l, struct cgn_post *p)
{
	struct gw_calibration_asker *a = CGN_CONTAINER(p, struct gw_calibration_asker, stop);
	a->stopping = true;
	http_call_cancel(&a->call);
	cgn_timer_cancel(&a->again);
	if (a->sample != NULL)
		sample_end(a, "dropped");
	http_client_free(&a->client);
	cgn_loop_stop(l);
}

void gw_calibration_asker_free(struct gw_calibration_asker **take)
{
	struct gw_calibration_asker *a = CGN_TAKE_LIVE(take, ASKER_TAG);
	if (a == NULL)
		return;
	calibration_wake(a->cfg.shared->calibrations, NULL, NULL, NULL);
	cgn_loop_post(a->loop, &a->stop, asker_on_stop);
	cgn_loop_join(a->loop);
	cgn_loop_free(&a->loop);
	a->tag = 0;
	free(a);
}
