/* SPDX-License-Identifier: Apache-2.0 */
/* store: rate limits that several routers share, in Redis. A worker asks Redis once for a request and reports
 * the used amounts once. When Redis does not answer in time, or not well, the worker's own table decides:
 * without Redis each router has limits of its own, and no request fails or hangs. */
#include <stdlib.h>

#include "base/log/log.h"
#include "io/os/disk/disk.h"
#include "router/request/limit/limit_priv.h"

#define STORE_TAG     0x64117502U
#define PASSWORD_FILE ((size_t)4096)
#define KEY_MAX       (LIMIT_NAME_MAX + 100)
#define NUMBER_MAX    24

struct gw_store {
	uint32_t tag;
	struct gw_worker *w;
	struct redis *redis;
	char prefix[100];
	bool in_use, away;
	struct metric_cell *here, *there; /* Number of workers that count here, and in Redis */
};

/* ---- settings ---- */

static CGN_RC password_read(const char *path, struct redis_url *url, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0};
	struct cgn_err why;
	if (!cgn_ok(disk_read_file(path, PASSWORD_FILE, &text, &why)))
		return CGN_FAIL(err, INVALID, "router.rate_limit.redis_password_file: %s", why.msg);
	struct cgn_str rest = cgn_buf_view(&text), line = cgn_str_trim(cgn_str_split(&rest, '\n'));
	bool fits = line.n > 0 && cgn_str_copyz(url->password, sizeof url->password, line);
	explicit_bzero(text.p, text.n);
	if (!fits)
		return CGN_FAIL(err, INVALID,
			"router.rate_limit.redis_password_file: the first line of %s has 1 to %zu bytes",
			path, sizeof url->password - 1);
	return CGN_OK;
}

CGN_RC gw_store_cfg(const struct config *cfg, struct gw_store_cfg *out, struct cgn_err *err)
{
	struct cgn_err why;
	*out = (struct gw_store_cfg){0};
	if (cfg->router.rate_limit.redis_url == NULL)
		return CGN_OK;
	if (!cgn_ok(redis_url_parse(cfg->router.rate_limit.redis_url, &out->url, &why)))
		return CGN_FAIL(err, INVALID, "router.rate_limit.redis_url: %s", why.msg);
	if (cfg->router.rate_limit.redis_password_file != NULL)
		CGN_TRY(password_read(cfg->router.rate_limit.redis_password_file, &out->url, err));
	if (out->url.tls) {
		const struct tls_cfg tls = {.ca_file = cfg->router.rate_limit.redis_ca_file};
		CGN_TRY(tls_ctx_new(&tls, &out->tls, err));
	}
	out->timeout = cfg->router.rate_limit.redis_timeout;
	out->set = true;
	(void)snprintf(out->prefix, sizeof out->prefix, "cgn:{%s}:rl:", cfg->cluster.name);
	return CGN_OK;
}

void gw_store_cfg_fini(struct gw_store_cfg *c)
{
	tls_ctx_free(&c->tls);
	explicit_bzero(c, sizeof *c);
}

/* ---- connection state ---- */

static void store_count(struct gw_store *s, bool in_use)
{
	if (s->in_use == in_use)
		return;
	s->in_use = in_use;
	metric_shift(s->here, in_use ? -1 : 1);
	metric_shift(s->there, in_use ? 1 : -1);
}

/* Log once for all workers: when the first loses Redis, and when the last has it back. */
static void on_state(void *user, bool ready, const struct cgn_err *why)
{
	struct gw_store *s = user;
	_Atomic uint32_t *n = &s->w->shared->stores_away;
	CGN_LIVE(s, STORE_TAG);
	store_count(s, ready);
	if (!ready && !s->away && atomic_fetch_add(n, 1) == 0)
		cgn_log(WARN, "router.limit_store_away", F_STR("why", why->msg),
			F_STR("then", "each router keeps limits by itself until it is back"));
	if (ready && s->away && atomic_fetch_sub(n, 1) == 1)
		cgn_log(INFO, "router.limit_store_back", F_STR("then", "routers share limits again"));
	s->away = !ready;
}

void gw_store_open(struct gw_worker *w, const struct gw_store_cfg *cfg)
{
	if (cfg == NULL || !cfg->set)
		return;
	struct gw_store *s = CGN_NEW(struct gw_store);
	char probe[KEY_MAX];
	*s = (struct gw_store){.tag = STORE_TAG, .w = w};
	(void)cgn_str_copyz(s->prefix, sizeof s->prefix, cgn_str_of(cfg->prefix));
	(void)snprintf(probe, sizeof probe, "%sprobe", s->prefix);
	s->here = METRIC_OF(w->shared->telemetry, RATE_LIMIT_STORE, "local");
	s->there = METRIC_OF(w->shared->telemetry, RATE_LIMIT_STORE, "redis");
	struct redis_cfg redis = {
		.url = cfg->url,
		.tls = cfg->tls,
		.script = rate_script,
		.probe = probe,
		.timeout = cfg->timeout,
		.on_state = on_state,
		.user = s,
	};
	s->redis = redis_new(w->loop, &redis);
	explicit_bzero(&redis.url, sizeof redis.url);
	metric_shift(s->here, 1);
	w->store = s;
}

void gw_store_close(struct gw_worker *w)
{
	struct gw_store *s = w->store;
	if (s == NULL)
		return;
	CGN_LIVE(s, STORE_TAG);
	redis_free(&s->redis);
	w->store = NULL;
	store_count(s, false);
	metric_shift(s->here, -1);
	if (s->away)
		atomic_fetch_sub(&w->shared->stores_away, 1);
	s->tag = 0;
	free(s);
}

/* ---- calls ---- */

#define ARGS_A_KEY   4
#define VALUES_A_KEY 3

/* The keys and arguments of a call, with the memory of their texts. */
struct store_call {
	struct cgn_str keys[GW_STORE_KEYS], args[1 + ARGS_A_KEY * GW_STORE_KEYS];
	size_t n;
	char key_texts[GW_STORE_KEYS][KEY_MAX], arg_texts[ARGS_A_KEY * GW_STORE_KEYS][NUMBER_MAX];
};

static int64_t duration_us(cgn_nsec d)
{
	return (int64_t)((d + 999) / 1000);
}

/* Add the arguments of the key that was written to the call last. */
static void call_add(struct store_call *to, const char *kind, int64_t room, int64_t cost, uint64_t number)
{
	size_t i = to->n++;
	char(*texts)[NUMBER_MAX] = &to->arg_texts[ARGS_A_KEY * i];
	(void)snprintf(texts[0], NUMBER_MAX, "%s", kind);
	(void)snprintf(texts[1], NUMBER_MAX, "%lld", (long long)room);
	(void)snprintf(texts[2], NUMBER_MAX, "%lld", (long long)cost);
	(void)snprintf(texts[3], NUMBER_MAX, "%llu", (unsigned long long)number);
	to->keys[i] = cgn_str_of(to->key_texts[i]);
	for (size_t k = 0; k < ARGS_A_KEY; k++)
		to->args[1 + ARGS_A_KEY * i + k] = cgn_str_of(texts[k]);
}

static void call_add_limit(struct store_call *to, const struct gw_store *s, const struct gw_limit *one,
	int64_t cost)
{
	(void)snprintf(to->key_texts[to->n], KEY_MAX, "%s%s", s->prefix, one->name);
	call_add(to, "rate", duration_us(rate_cost(&one->rate, one->rate.burst)), cost, 0);
}

static void call_add_budget(struct store_call *to, const struct gw_store *s, const struct gw_spender *one,
	size_t i, int64_t cost)
{
	static const char *const units[BUDGET_UNITS] = {"requests", "tokens", "money", "joules"};
	const struct budget *b = &one->set.v[i];
	const char *window = budget_window_text(b->window);
	(void)snprintf(to->key_texts[to->n], KEY_MAX, "%sb:%s:%s:%s", s->prefix, one->name, units[b->unit],
		window);
	call_add(to, window, (int64_t)b->limit, cost, one->held.number[b->window]);
}

static cgn_nsec duration_of_us(int64_t us)
{
	return us > 0 ? (uint64_t)us < RATE_LONGEST / 1000 ? (cgn_nsec)us * 1000 : RATE_LONGEST : 0;
}

static void answer_apply_budgets(struct gw_limits *l, const int64_t *v, bool granted)
{
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++, v += VALUES_A_KEY) {
			struct gw_spender *s = &l->spenders[k];
			const struct budget *b = &s->set.v[i];
			uint64_t number = (uint64_t)v[2];
			s->held.number[b->window] = number;
			s->answers[i] = (struct budget_answer){.granted = granted || v[1] == 0,
				.spent = v[0] > 0 ? (uint64_t)v[0] : 0,
				.ends_at = budget_window_end(b->window, number)};
		}
}

static void answer_apply(struct gw_limits *l, const struct redis_answer *a)
{
	bool granted = a->values[0] == 1;
	const int64_t *v = a->values + 1;
	for (unsigned i = 0; i < l->n; i++, v += VALUES_A_KEY) {
		cgn_nsec full_in = duration_of_us(v[0]), wait = duration_of_us(v[1]);
		l->v[i].answer = (struct rate_answer){
			.granted = granted || wait == 0,
			.wait = wait,
			.left = rate_left(&l->v[i].rate, full_in),
			.full_in = full_in,
		};
	}
	answer_apply_budgets(l, v, granted);
	l->reserved = granted;
	l->stored = true;
	gw_budgets_mirror(l);
}

static size_t keys_count(const struct gw_limits *l)
{
	size_t n = l->n;
	for (unsigned k = 0; k < l->n_spenders; k++)
		n += l->spenders[k].set.n;
	return n;
}

static bool is_sound(const struct gw_limits *l, const struct redis_answer *a)
{
	bool refuses = false, sound = true;
	size_t n = keys_count(l);
	if (a->err->code != CGN_FINE || a->n != 1 + VALUES_A_KEY * n)
		return false;
	for (size_t i = 0; i < n; i++) {
		refuses = refuses || a->values[2 + VALUES_A_KEY * i] > 0;
		sound = sound && (i < l->n || a->values[3 + VALUES_A_KEY * i] > 0);
	}
	return sound && refuses == (a->values[0] != 1);
}

static void on_answer(void *user, const struct redis_answer *a)
{
	struct gw_limits *l = user;
	l->asking = false;
	if (is_sound(l, a))
		answer_apply(l, a);
	if (l->r != NULL)
		gw_wake(l->r);
	else
		/* the request has ended meanwhile: give the reserved amounts back */
		limit_end(l, NULL, NULL);
}

bool gw_store_ask(struct gw_req *r, struct gw_limits *l)
{
	static const struct cgn_str reserve = {"0", 1};
	struct gw_store *s = r->w->store;
	struct store_call call = {.args = {reserve}};
	if (s == NULL || !redis_is_ready(s->redis) || gw_budgets_never(l))
		return false;
	for (unsigned i = 0; i < l->n; i++) {
		if (l->v[i].reserved > l->v[i].rate.burst)
			return false; /* can never be granted: no need to ask */
		call_add_limit(&call, s, &l->v[i], duration_us(rate_cost(&l->v[i].rate, l->v[i].reserved)));
	}
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++)
			call_add_budget(&call, s, &l->spenders[k], i,
				(int64_t)l->spenders[k].want.v[l->spenders[k].set.v[i].unit]);
	l->r = r;
	l->asking = cgn_ok(
		redis_run(s->redis, call.keys, call.n, call.args, 1 + ARGS_A_KEY * call.n, on_answer, l));
	return l->asking;
}

static void budgets_report(struct store_call *call, const struct gw_store *s, const struct gw_limits *l,
	const struct budget_amounts *spent)
{
	for (unsigned k = 0; k < l->n_spenders; k++)
		for (size_t i = 0; i < l->spenders[k].set.n; i++) {
			enum budget_unit unit = l->spenders[k].set.v[i].unit;
			int64_t more = (int64_t)(spent != NULL ? spent->v[unit] : 0) -
				(int64_t)l->spenders[k].want.v[unit];
			if (more != 0)
				call_add_budget(call, s, &l->spenders[k], i, more);
		}
}

void gw_store_settle(struct gw_worker *w, const struct gw_limits *l, const uint64_t *used,
	const struct budget_amounts *spent)
{
	static const struct cgn_str settle = {"1", 1};
	struct gw_store *s = w->store;
	struct store_call call = {.args = {settle}};
	/* Without Redis nothing is reported: amounts that are reserved there stay taken until their time has
	 * passed. */
	if (s == NULL || !redis_is_ready(s->redis))
		return;
	for (unsigned i = 0; i < l->n; i++) {
		const struct gw_limit *one = &l->v[i];
		int64_t had = duration_us(rate_cost(&one->rate, one->reserved)),
			needed = duration_us(rate_cost(&one->rate, used[i]));
		if (had != needed)
			call_add_limit(&call, s, one, needed - had);
	}
	budgets_report(&call, s, l, spent);
	if (call.n > 0)
		(void)cgn_ok(redis_run(s->redis, call.keys, call.n, call.args, 1 + ARGS_A_KEY * call.n, NULL,
			NULL));
}
