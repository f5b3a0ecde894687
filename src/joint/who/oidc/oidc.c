/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/oidc/oidc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/crypto/crypto.h"
#include "base/log/log.h"
#include "base/unlikely/unlikely.h"
#include "io/net/pki/signature.h"
#include "joint/who/oidc/issuer.h"

#define OIDC_TAG 0x01dc4001U

/* A token that was judged. */
struct seen {
	struct digest token; /* Keyed with oidc.seed, so that tokens that share a place cannot be chosen. */
	uint64_t generation; /* 0: free. */
	struct claims_holder holder;
};

/* The provider's keys, which many threads may use at once. */
struct keys {
	atomic_uint refs;
	struct jwt_keys keys;
};

struct oidc {
	uint32_t tag;
	struct cgn_loop *loop;
	struct telemetry *telemetry;
	struct issuer *issuer; /* The loop's. */
	char *url;             /* With which |issuer| was opened; the loop's. */
	struct cgn_post post;  /* Asks the loop for a round. */
	struct cgn_grave grave;
	struct digest seed;

	pthread_mutex_t lock; /* For all below. */
	struct claims_rules *rules;
	struct keys *keys;    /* NULL: none are known. */
	cgn_nsec keys_at;     /* When they were last heard. */
	cgn_nsec max_age;     /* auth.oidc_keys_max_age */
	uint64_t generation;  /* Grows with each change of rules and keys. */
	char why[400];        /* Why the last round failed; empty: it did not. */
	uint64_t rounds;      /* Rounds that have ended. */
	bool running;         /* A round is under way. */
	bool due;             /* A token waits for a round that has not begun. */
	bool posted, closing; /* |post| is on its way; the owner has closed. */
	cgn_nsec began_at;    /* Begin of the last round; 0: none. */
	struct seen *seen;    /* OIDC_CACHE */
};

/* ---- keys ---- */

static void keys_unref(struct keys **take)
{
	struct keys *k = CGN_TAKE(take);
	if (k != NULL && atomic_fetch_sub(&k->refs, 1) == 1)
		free(k);
}

static void keys_tell(struct oidc *o, const struct keys *k)
{
	metric_set(METRIC_ONE(o->telemetry, OIDC_KEYS), k != NULL ? (double)k->keys.n : 0);
	if (k != NULL)
		cgn_log(INFO, "oidc.keys", F_STR("issuer", o->url), F_U64("keys", k->keys.n),
			F_U64("left_out", k->keys.left_out));
}

/* Take over the keys of a round, if they are others. */
static void keys_adopt(struct oidc *o, const struct jwt_keys *keys)
{
	struct keys *fresh = CGN_NEW(struct keys), *old = NULL;
	fresh->refs = 1;
	memcpy(fresh->keys.key, keys->key, keys->n * sizeof keys->key[0]);
	fresh->keys.n = keys->n;
	fresh->keys.left_out = keys->left_out;
	(void)pthread_mutex_lock(&o->lock);
	bool same = o->keys != NULL && o->keys->keys.n == keys->n &&
		memcmp(o->keys->keys.key, fresh->keys.key, keys->n * sizeof keys->key[0]) == 0;
	if (!same) {
		old = o->keys;
		o->keys = fresh;
		o->generation++;
	}
	(void)pthread_mutex_unlock(&o->lock);
	if (same)
		free(fresh);
	else
		keys_tell(o, fresh);
	keys_unref(&old);
}

static void on_began(void *user)
{
	struct oidc *o = user;
	CGN_LIVE(o, OIDC_TAG);
	(void)pthread_mutex_lock(&o->lock);
	o->running = true;
	o->due = false;
	o->began_at = cgn_clock_now();
	(void)pthread_mutex_unlock(&o->lock);
}

/* Ask the provider as soon as OIDC_ASK_EVERY allows, if a token waits for that. */
static void due_ask(struct oidc *o)
{
	(void)pthread_mutex_lock(&o->lock);
	cgn_nsec age = cgn_since(cgn_clock_now(), o->began_at);
	cgn_nsec in = o->began_at == 0 || age >= OIDC_ASK_EVERY ? 0 : OIDC_ASK_EVERY - age;
	bool due = o->due && !o->running;
	(void)pthread_mutex_unlock(&o->lock);
	if (due)
		issuer_ask(o->issuer, in);
}

static void on_round(void *user, const struct jwt_keys *keys, const char *why)
{
	struct oidc *o = user;
	CGN_LIVE(o, OIDC_TAG);
	if (keys != NULL)
		keys_adopt(o, keys);
	(void)pthread_mutex_lock(&o->lock);
	o->running = false;
	o->rounds++;
	if (keys != NULL)
		o->keys_at = cgn_clock_now();
	(void)cgn_str_copyz(o->why, sizeof o->why, cgn_str_of(why != NULL ? why : ""));
	(void)pthread_mutex_unlock(&o->lock);
	metric_add(METRIC_OF(o->telemetry, OIDC_ROUNDS, why != NULL ? "failed" : "ok"), 1);
	if (why != NULL)
		cgn_log_limited(WARN, "oidc.unreachable", F_STR("issuer", o->url), F_STR("why", why),
			F_STR("then",
				"the known keys are used for auth.oidc_keys_max_age; it is asked again"));
	due_ask(o);
}

/* ---- asking again ---- */

static void oidc_release(struct cgn_grave *g)
{
	struct oidc *o = CGN_CONTAINER(g, struct oidc, grave);
	claims_rules_unref(&o->rules);
	keys_unref(&o->keys);
	(void)pthread_mutex_destroy(&o->lock);
	free(o->seen);
	free(o->url);
	o->tag = 0;
	free(o);
}

static void on_post(struct cgn_loop *l, struct cgn_post *p)
{
	struct oidc *o = CGN_CONTAINER(p, struct oidc, post);
	(void)l;
	(void)pthread_mutex_lock(&o->lock);
	o->posted = false;
	bool closing = o->closing;
	(void)pthread_mutex_unlock(&o->lock);
	if (closing)
		oidc_release(&o->grave);
	else
		due_ask(o);
}

/* A token names a key that is not known: shall its holder wait for a round? Call with the lock. */
static bool round_await(struct oidc *o, struct oidc_wait *w)
{
	if (w == NULL) {
		bool recent = o->began_at != 0 && cgn_since(cgn_clock_now(), o->began_at) < OIDC_ASK_EVERY;
		if (recent && !o->running && !o->due)
			return false;
	} else {
		if (w->until ==
			0) /* A round that is under way may have been answered before the key was made. */
			w->until = o->rounds + (o->running ? 2 : 1);
		w->seen = o->rounds;
		if (o->rounds >= w->until)
			return false;
		if (o->running && w->until == o->rounds + 1)
			return true;
	}
	o->due = true;
	if (!o->running && !o->posted) {
		cgn_loop_post(o->loop, &o->post, on_post);
		o->posted = true;
	}
	return true;
}

bool oidc_wait_goes_on(struct oidc *o, const struct oidc_wait *w)
{
	CGN_LIVE(o, OIDC_TAG);
	if (w->until == 0)
		return false;
	(void)pthread_mutex_lock(&o->lock);
	bool same = o->rounds == w->seen;
	(void)pthread_mutex_unlock(&o->lock);
	return same;
}

/* ---- judging ---- */

static struct seen *seen_place(const struct oidc *o, const struct digest *token)
{
	return &o->seen[digest_short(token) % OIDC_CACHE];
}

/* The state that judging needs, taken under the lock. */
struct now {
	struct claims_rules *rules;
	struct keys *keys;
	uint64_t generation;
};

static void now_fini(struct now *n)
{
	claims_rules_unref(&n->rules);
	keys_unref(&n->keys);
}

/* Copy a judgement that still holds; else take the references that a new one needs. */
static CGN_RC seen_or_now(struct oidc *o, const struct digest *token, uint64_t wall, bool *found,
	struct claims_holder *out, struct now *n, struct cgn_err *err)
{
	cgn_rc rc = CGN_OK;
	(void)pthread_mutex_lock(&o->lock);
	const struct seen *s = seen_place(o, token);
	if (o->keys == NULL)
		rc = CGN_FAIL(err, UNAVAILABLE, "the keys of the identity provider are not known: %.200s",
			o->why[0] != '\0' ? o->why : "it has not answered yet");
	else if (cgn_since(cgn_clock_now(), o->keys_at) > o->max_age)
		rc = CGN_FAIL(err, UNAVAILABLE,
			"the keys of the identity provider are too old (auth.oidc_keys_max_age): %.200s",
			o->why);
	*found = cgn_ok(rc) && s->generation == o->generation && wall < s->holder.expires &&
		crypto_equal(&s->token, token, sizeof *token) && !unlikely_way(UNLIKELY_token_judged);
	if (*found)
		*out = s->holder;
	if (cgn_ok(rc) && !*found) {
		*n = (struct now){o->rules, o->keys, o->generation};
		claims_rules_ref(n->rules);
		atomic_fetch_add(&n->keys->refs, 1);
	}
	(void)pthread_mutex_unlock(&o->lock);
	return rc;
}

static void seen_keep(struct oidc *o, const struct digest *token, uint64_t generation,
	const struct claims_holder *holder)
{
	(void)pthread_mutex_lock(&o->lock);
	struct seen *s = seen_place(o, token);
	s->token = *token;
	s->generation = generation;
	s->holder = *holder;
	(void)pthread_mutex_unlock(&o->lock);
}

static CGN_RC key_missing(struct oidc *o, const struct jwt *t, struct oidc_wait *wait, struct cgn_err *err)
{
	char why[sizeof o->why];
	(void)pthread_mutex_lock(&o->lock);
	bool waits = round_await(o, wait);
	memcpy(why, o->why, sizeof why);
	(void)pthread_mutex_unlock(&o->lock);
	if (!waits && why[0] != '\0') /* The provider may have a new key. */
		return CGN_FAIL(err, UNAVAILABLE,
			"the token is signed with a key that is not known, and the identity provider cannot be asked: %.200s",
			why);
	if (waits)
		return CGN_FAIL(err, NOT_FOUND,
			"the token is signed with a key that is not known yet: the identity provider is asked");
	return CGN_FAIL(err, UNAUTHENTICATED,
		"the token is signed with a key (%s) that the identity provider does not have",
		t->kid.p != NULL ? "kid" : "without a kid, and there are several");
}

static CGN_RC signature_judge(struct oidc *o, const struct jwt *t, const struct keys *keys,
	struct oidc_wait *wait, struct cgn_err *err)
{
	static const enum pki_scheme schemes[JWT_ALGS] =
		{[JWT_RS256] = PKI_RS256, [JWT_ES256] = PKI_ES256, [JWT_EDDSA] = PKI_EDDSA};
	const struct jwt_key *k = jwt_key_find(&keys->keys, t);
	if (k == NULL)
		return key_missing(o, t, wait, err);
	const struct pki_numbers numbers = {{(const char *)k->modulus, k->n_modulus},
		{(const char *)k->exponent, k->n_exponent}, {(const char *)k->x, JWT_POINT_BYTES},
		{(const char *)k->y, JWT_POINT_BYTES}};
	cgn_rc rc = pki_signature_check(schemes[k->alg], &numbers, t->signed_text, t->signature, err);
	return rc.code == CGN_INVALID ? CGN_FAIL(err, UNAUTHENTICATED, "the token's key cannot be used") : rc;
}

static CGN_RC token_judge(struct oidc *o, struct cgn_str token, struct cgn_str audience, uint64_t wall,
	const struct now *n, struct oidc_wait *wait, struct claims_holder *out, struct cgn_err *err)
{
	CGN_ON_EXIT(jwt_fini) struct jwt t = {0};
	CGN_TRY(jwt_read(token, &t, err));
	CGN_TRY(signature_judge(o, &t, n->keys, wait, err));
	return claims_judge(n->rules, &t, audience, wall, out, err);
}

/* The audience is part of the name under which a judgement is kept. */
static struct digest token_name(const struct oidc *o, struct cgn_str token, struct cgn_str audience)
{
	struct digest name = digest_keyed(&o->seed, token);
	return audience.p != NULL ? digest_keyed(&name, audience) : name;
}

CGN_RC oidc_judge(struct oidc *o, struct cgn_str token, struct cgn_str audience, struct oidc_wait *wait,
	struct claims_holder *out, struct cgn_err *err)
{
	CGN_ON_EXIT(now_fini) struct now n = {0};
	uint64_t wall = cgn_clock_wall_ms() / 1000;
	bool found;
	CGN_LIVE(o, OIDC_TAG);
	if (token.n > JWT_MAX_BYTES)
		return CGN_FAIL(err, UNAUTHENTICATED, "the token has more than %d bytes", JWT_MAX_BYTES);
	struct digest name = token_name(o, token, audience);
	CGN_TRY(seen_or_now(o, &name, wall, &found, out, &n, err));
	if (found)
		return CGN_OK;
	CGN_TRY(token_judge(o, token, audience, wall, &n, wait, out, err));
	seen_keep(o, &name, n.generation, out);
	return CGN_OK;
}

bool oidc_endpoints(const struct oidc *o, struct oidc_endpoints *out)
{
	CGN_LIVE(o, OIDC_TAG);
	return issuer_endpoints(o->issuer, out);
}

/* ---- life ---- */

/* Ask the provider of |cfg| from now on, with the CA file as it is now. */
static CGN_RC issuer_follow(struct oidc *o, const struct config *cfg, bool *changed, struct cgn_err *err)
{
	const struct issuer_cfg at = {.url = cfg->auth.oidc_issuer,
		.ca_file = cfg->auth.oidc_ca_file,
		.began = on_began,
		.done = on_round,
		.user = o};
	struct issuer *fresh = NULL;
	*changed = o->url == NULL || strcmp(o->url, at.url) != 0;
	CGN_TRY(cgn_err_of(issuer_open(o->loop, &at, &fresh, err), "auth.oidc_issuer", err));
	issuer_close(&o->issuer);
	o->issuer = fresh; /* The new issuer begins with a round; the old one ends none. */
	(void)pthread_mutex_lock(&o->lock);
	o->running = false;
	(void)pthread_mutex_unlock(&o->lock);
	free(o->url);
	o->url = cgn_str_dupz(cgn_str_of(at.url));
	return CGN_OK;
}

CGN_RC oidc_reload(struct oidc *o, const struct config *cfg, struct cgn_err *err)
{
	struct claims_rules *rules = NULL;
	struct keys *old = NULL;
	bool changed = false;
	CGN_LIVE(o, OIDC_TAG);
	CGN_TRY(claims_rules_new(cfg, &rules, err));
	cgn_rc rc = issuer_follow(o, cfg, &changed, err);
	if (!cgn_ok(rc)) {
		claims_rules_unref(&rules);
		return rc;
	}
	(void)pthread_mutex_lock(&o->lock);
	struct claims_rules *before = o->rules;
	o->rules = rules;
	o->max_age = cfg->auth.oidc_keys_max_age;
	o->generation++;
	if (changed) {
		old = o->keys;
		o->keys = NULL;
	}
	(void)pthread_mutex_unlock(&o->lock);
	if (changed)
		keys_tell(o, NULL);
	claims_rules_unref(&before);
	keys_unref(&old);
	return CGN_OK;
}

void oidc_issuer(struct oidc *o, char out[CLAIMS_ISSUER_MAX + 1])
{
	CGN_LIVE(o, OIDC_TAG);
	(void)pthread_mutex_lock(&o->lock);
	if (!cgn_str_copyz(out, CLAIMS_ISSUER_MAX + 1, claims_issuer(o->rules)))
		out[0] = '\0';
	(void)pthread_mutex_unlock(&o->lock);
}

CGN_RC oidc_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct oidc **out,
	struct cgn_err *err)
{
	struct oidc *o = CGN_NEW(struct oidc);
	o->tag = OIDC_TAG;
	o->loop = l;
	o->telemetry = t;
	cgn_random(&o->seed, sizeof o->seed);
	CGN_MUST(pthread_mutex_init(&o->lock, NULL) == 0);
	o->seen = CGN_NEW_ARRAY(struct seen, OIDC_CACHE);
	cgn_rc rc = oidc_reload(o, cfg, err);
	if (!cgn_ok(rc)) {
		oidc_close(&o);
		return rc;
	}
	*out = o;
	return CGN_OK;
}

void oidc_close(struct oidc **take)
{
	struct oidc *o = CGN_TAKE_LIVE(take, OIDC_TAG);
	if (o == NULL)
		return;
	issuer_close(&o->issuer);
	(void)pthread_mutex_lock(&o->lock);
	o->closing = true;
	bool posted = o->posted;
	(void)pthread_mutex_unlock(&o->lock);
	if (!posted) /* Otherwise on_post frees it. */
		cgn_loop_bury(o->loop, &o->grave, oidc_release);
}

CGN_RC oidc_check(const struct config *cfg, struct cgn_err *err)
{
	struct claims_rules *rules = NULL;
	CGN_TRY(claims_rules_new(cfg, &rules, err));
	claims_rules_unref(&rules);
	return CGN_OK;
}
