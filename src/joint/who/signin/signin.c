/* SPDX-License-Identifier: Apache-2.0 */
#include "joint/who/signin/signin.h"

#include <stdlib.h>

#include "base/codec/codec.h"
#include "base/crypto/crypto.h"
#include "base/weburl/weburl.h"
#include "io/os/disk/disk.h"
#include "io/wire/webask/webask.h"
#include "joint/web/webclient/webclient.h"
#include "policy/who/quota/quota.h"

#define SIGNIN_TAG   0x5169e001U
#define EXCHANGE_TAG 0x5169e0e1U
#define WAY_SECONDS  600 /* To sign in at the provider. */
#define RANDOM_BYTES 32
#define TEXT_BYTES   48 /* Room for 32 bytes in base64url, and NUL. */
#define MAX_ANSWER   ((size_t)128 << 10)

/* A person who is signed in. */
struct session {
	struct digest id; /* Keyed: the cookie itself is not kept. */
	uint64_t ends;    /* Unix seconds; 0: free. */
	struct claims_holder holder;
};

struct signin {
	uint32_t tag;
	struct cgn_loop *loop;
	struct oidc *oidc;
	struct digest seed;
	char *client_id, *redirect_url, *scopes, *ca_file; /* ca_file NULL: the system's authorities. */
	struct cgn_buf basic; /* "Basic ..." of the client; empty: it has no secret. */
	bool secure;          /* Browsers come by https. */
	uint64_t session_s;
	char client_url[OIDC_URL_MAX]; /* |client| was opened with it. */
	struct http_client *client;    /* NULL: not opened yet. */
	struct weburl url;
	struct session *session; /* SIGNIN_SESSIONS */
	struct signin_exchange *open[SIGNIN_EXCHANGES];
};

struct signin_exchange {
	uint32_t tag;
	struct signin *signin;
	size_t slot;
	struct webask *ask;
	char nonce[TEXT_BYTES];
	signin_done *done;
	void *user;
	struct cgn_grave grave;
};

/* ---- texts ---- */

static void base64_text(const void *bytes, size_t n, char out[TEXT_BYTES])
{
	struct cgn_buf b = cgn_buf_over(out, TEXT_BYTES - 1);
	base64url_put(&b, (struct cgn_str){bytes, n});
	out[b.n] = '\0';
}

/* Derive a secret of this way to the provider from its cookie. */
static void secret_of(const struct signin *s, struct cgn_str way, const char *what, char out[TEXT_BYTES])
{
	struct digest key = digest_keyed(&s->seed, cgn_str_of(what));
	struct digest d = digest_keyed(&key, way);
	base64_text(d.b, sizeof d.b, out);
}

static void field_put(struct cgn_buf *out, const char *name, const char *value)
{
	cgn_buf_fmt(out, "%s=", name);
	percent_put(out, cgn_str_of(value));
	cgn_buf_char(out, '&');
}

static void cookie_put(const struct signin *s, char out[SIGNIN_COOKIE_MAX], const char *name,
	const char *value, uint64_t seconds)
{
	/* Lax: the browser comes back from the provider's site with it, and sends it with no request that another site's
	 * page makes. */
	(void)snprintf(out, SIGNIN_COOKIE_MAX, "%s=%s; Path=/; HttpOnly; SameSite=Lax; Max-Age=%llu%s", name,
		value, (unsigned long long)seconds, s->secure ? "; Secure" : "");
}

/* ---- to the provider ---- */

struct cgn_str signin_url(const struct signin *s)
{
	CGN_LIVE(s, SIGNIN_TAG);
	return (struct cgn_str){s->redirect_url, strlen(s->redirect_url) - strlen("/done")};
}

CGN_RC signin_begin(struct signin *s, struct cgn_buf *location, char cookie[SIGNIN_COOKIE_MAX],
	struct cgn_err *err)
{
	struct oidc_endpoints at;
	uint8_t random[RANDOM_BYTES];
	char way[TEXT_BYTES], state[TEXT_BYTES], nonce[TEXT_BYTES], verifier[TEXT_BYTES],
		challenge[TEXT_BYTES];
	CGN_LIVE(s, SIGNIN_TAG);
	if (!oidc_endpoints(s->oidc, &at))
		return CGN_FAIL(err, UNAVAILABLE,
			"the identity provider has not been reached yet, or has no page to sign in");
	cgn_random(random, sizeof random);
	base64_text(random, sizeof random, way);
	secret_of(s, cgn_str_of(way), "state", state);
	secret_of(s, cgn_str_of(way), "nonce", nonce);
	secret_of(s, cgn_str_of(way), "verifier", verifier);
	struct sha256 hash = crypto_sha256(cgn_str_of(verifier));
	base64_text(hash.b, sizeof hash.b, challenge);
	cgn_buf_fmt(location, "%s%c", at.authorize, strchr(at.authorize, '?') != NULL ? '&' : '?');
	field_put(location, "response_type", "code");
	field_put(location, "client_id", s->client_id);
	field_put(location, "redirect_uri", s->redirect_url);
	field_put(location, "scope", s->scopes);
	field_put(location, "state", state);
	field_put(location, "nonce", nonce);
	field_put(location, "code_challenge", challenge);
	cgn_buf_putz(location, "code_challenge_method=S256");
	cookie_put(s, cookie, SIGNIN_COOKIE_WAY, way, WAY_SECONDS);
	return CGN_OK;
}

/* ---- back from the provider ---- */

/* Append the value of |name| in a query; false: it is not there, or too long. */
static bool query_find(struct cgn_str query, const char *name, struct cgn_buf *out)
{
	while (query.p != NULL) {
		struct cgn_str value = cgn_str_split(&query, '&'), key = cgn_str_split(&value, '=');
		if (!cgn_str_is(key, name) || value.p == NULL || value.n > SIGNIN_CODE_MAX)
			continue;
		char *to = cgn_buf_room(out, value.n + 1);
		if (to == NULL)
			return false;
		cgn_buf_grew(out, percent_get(to, value));
		return memchr(to, '\0', out->n) == NULL;
	}
	return false;
}

/* The provider says that it refuses; otherwise the answer must belong to this browser. */
static CGN_RC answer_check(const struct signin *s, struct cgn_str query, struct cgn_str way,
	struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf state = {0}, error = {0}, shown = {.limit = 300};
	char want[TEXT_BYTES];
	if (way.n == 0 || way.n >= TEXT_BYTES)
		return CGN_FAIL(err, UNAUTHENTICATED,
			"this browser did not begin to sign in here, or more than %d minutes ago: begin again at /login",
			WAY_SECONDS / 60);
	secret_of(s, way, "state", want);
	if (!query_find(query, "state", &state) || state.n != strlen(want) ||
		!crypto_equal(state.p, want, state.n))
		return CGN_FAIL(err, UNAUTHENTICATED,
			"the answer of the identity provider is for another browser, or for another attempt: begin again at /login");
	if (!query_find(query, "error", &error))
		return CGN_OK;
	cgn_buf_shown(&shown, cgn_buf_view(&error));
	return CGN_FAIL(err, UNAUTHENTICATED, "the identity provider refuses: %s", cgn_buf_z(&shown));
}

static CGN_RC client_open(struct signin *s, const char *url, struct cgn_err *err)
{
	const struct webclient_cfg cfg = {.url = url,
		.ca_file = cgn_str_starts(cgn_str_of(url), "https://") ? s->ca_file : NULL,
		.max_conns = SIGNIN_EXCHANGES,
		.connect_timeout = OIDC_TIMEOUT};
	if (s->client != NULL && strcmp(s->client_url, url) == 0)
		return CGN_OK;
	for (size_t i = 0; i < SIGNIN_EXCHANGES; i++)
		if (s->open[i] != NULL)
			return CGN_FAIL(err, UNAVAILABLE, "the identity provider has moved: try again");
	if (s->client != NULL)
		http_client_free(&s->client);
	CGN_TRY(webclient_open(s->loop, &cfg, &s->url, &s->client, err));
	(void)cgn_str_copyz(s->client_url, sizeof s->client_url, cgn_str_of(url));
	return CGN_OK;
}

static void exchange_release(struct cgn_grave *g)
{
	struct signin_exchange *x = CGN_CONTAINER(g, struct signin_exchange, grave);
	x->tag = 0;
	free(x);
}

static void exchange_retire(struct signin_exchange *x)
{
	x->signin->open[x->slot] = NULL;
	webask_cancel(&x->ask);
	cgn_loop_bury(x->signin->loop, &x->grave, exchange_release);
}

void signin_cancel(struct signin_exchange **take)
{
	struct signin_exchange *x = CGN_TAKE_LIVE(take, EXCHANGE_TAG);
	if (x == NULL)
		return;
	exchange_retire(x);
}

/* ---- sessions ---- */

static struct digest session_id(const struct signin *s, struct cgn_str cookie)
{
	return digest_keyed(&s->seed, cookie);
}

static struct session *session_of(const struct signin *s, struct cgn_str cookie)
{
	struct digest id = session_id(s, cookie);
	uint64_t now = cgn_clock_wall_ms() / 1000;
	for (size_t i = 0; cookie.n > 0 && i < SIGNIN_SESSIONS; i++)
		if (s->session[i].ends > now && crypto_equal(&s->session[i].id, &id, sizeof id))
			return &s->session[i];
	return NULL;
}

/* The sessions of one person. */
struct person {
	size_t n;
	struct session *first; /* Ends first; NULL: there is none. */
};

static struct person person_of(const struct signin *s, const char *account, uint64_t now)
{
	struct person p = {0, NULL};
	for (size_t i = 0; i < SIGNIN_SESSIONS; i++) {
		struct session *e = &s->session[i];
		if (e->ends <= now || strcmp(e->holder.account, account) != 0)
			continue;
		p.n++;
		if (p.first == NULL || e->ends < p.first->ends)
			p.first = e;
	}
	return p;
}

/* Return the session that ends first of the people with several, or of all people if each has one. */
static struct session *session_spare(const struct signin *s, uint64_t now)
{
	struct session *spare = NULL;
	bool several = false;
	for (size_t i = 0; i < SIGNIN_SESSIONS; i++) {
		struct session *e = &s->session[i];
		bool more = person_of(s, e->holder.account, now).n > 1;
		if (spare != NULL && (more == several ? e->ends >= spare->ends : several))
			continue;
		spare = e;
		several = more;
	}
	return spare;
}

/* Return the place of a new session of the person. */
static struct session *session_place(const struct signin *s, const char *account)
{
	const uint64_t now = cgn_clock_wall_ms() / 1000;
	const struct person p = person_of(s, account, now);
	struct session *unused = NULL;
	size_t free = 0;
	for (size_t i = 0; i < SIGNIN_SESSIONS; i++)
		if (s->session[i].ends <= now) {
			unused = &s->session[i];
			free++;
		}
	if (quota_may(QUOTA_SESSIONS, p.n, free, 1))
		return unused;
	return p.first != NULL ? p.first : session_spare(s, now);
}

static void session_begin(struct signin *s, const struct claims_holder *holder,
	char cookie[SIGNIN_COOKIE_MAX])
{
	uint8_t random[RANDOM_BYTES];
	char text[TEXT_BYTES];
	struct session *place = session_place(s, holder->account);
	cgn_random(random, sizeof random);
	base64_text(random, sizeof random, text);
	place->id = session_id(s, cgn_str_of(text));
	place->ends = cgn_clock_wall_ms() / 1000 + s->session_s;
	place->holder = *holder;
	cookie_put(s, cookie, SIGNIN_COOKIE, text, s->session_s);
}

bool signin_find(const struct signin *s, struct cgn_str cookie, struct claims_holder *out)
{
	CGN_LIVE(s, SIGNIN_TAG);
	const struct session *found = session_of(s, cookie);
	if (found != NULL)
		*out = found->holder;
	return found != NULL;
}

void signin_end(struct signin *s, struct cgn_str session, char cookie[SIGNIN_COOKIE_MAX])
{
	CGN_LIVE(s, SIGNIN_TAG);
	struct session *found = session_of(s, session);
	if (found != NULL)
		*found = (struct session){.ends = 0};
	cookie_put(s, cookie, SIGNIN_COOKIE, "", 0);
}

/* ---- the exchange of the code ---- */

/* Was the token made for this attempt, and for this client alone? oidc_judge has checked its signature. */
static CGN_RC token_belongs(const struct signin_exchange *x, struct cgn_str token, struct cgn_err *err)
{
	CGN_ON_EXIT(jwt_fini) struct jwt t = {0};
	struct json_val nonce, azp;
	char want[TEXT_BYTES + 2];
	CGN_TRY(jwt_read(token, &t, err));
	(void)snprintf(want, sizeof want, "\"%s\"", x->nonce);
	if (!json_get(t.claims, "nonce", &nonce) || !cgn_str_is(nonce.raw, want))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token is of another attempt to sign in (nonce)");
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf party = {0};
	if (!json_get(t.claims, "azp", &azp))
		return CGN_OK;
	if (azp.type == JSON_STRING)
		json_str_to(azp, &party);
	if (!cgn_str_is(cgn_buf_view(&party), x->signin->client_id))
		return CGN_FAIL(err, UNAUTHENTICATED, "the token was made for another client (azp)");
	return CGN_OK;
}

static CGN_RC answer_take(struct signin_exchange *x, struct cgn_str body, struct claims_holder *holder,
	char cookie[SIGNIN_COOKIE_MAX], struct cgn_err *err)
{
	struct signin *s = x->signin;
	struct json_val doc, token;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {.limit = JWT_MAX_BYTES};
	if (!cgn_ok(json_parse(body, &doc, NULL, NULL)) || !json_get(doc, "id_token", &token) ||
		token.type != JSON_STRING)
		return CGN_FAIL(err, BAD_GATEWAY,
			"the identity provider's answer to the code has no id_token");
	json_str_to(token, &text);
	if (text.bad)
		return CGN_FAIL(err, BAD_GATEWAY, "the identity provider's token has more than %d bytes",
			JWT_MAX_BYTES);
	CGN_TRY(oidc_judge(s->oidc, cgn_buf_view(&text), cgn_str_of(s->client_id), NULL, holder, err));
	CGN_TRY(token_belongs(x, cgn_buf_view(&text), err));
	session_begin(s, holder, cookie);
	return CGN_OK;
}

/* Pass the provider's error on (RFC 6749, 5.2). */
static cgn_rc refusal_tell(const struct webask_answer *a, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, shown = {.limit = 200};
	struct json_val doc, error;
	if (cgn_ok(json_parse(a->body, &doc, NULL, NULL)) && json_get(doc, "error", &error) &&
		error.type == JSON_STRING)
		json_str_to(error, &text);
	cgn_buf_shown(&shown, cgn_buf_view(&text));
	return CGN_FAIL(err, UNAUTHENTICATED, "the identity provider does not take the code: status %d %s",
		a->status, cgn_buf_z(&shown));
}

static void on_token(void *user, const struct webask_answer *a)
{
	struct signin_exchange *x = user;
	struct cgn_err err = {0};
	struct claims_holder holder;
	char cookie[SIGNIN_COOKIE_MAX] = "";
	CGN_LIVE(x, EXCHANGE_TAG);
	x->ask = NULL;
	cgn_rc rc;
	if (a->err->code != CGN_FINE)
		rc = CGN_FAIL(&err, UNAVAILABLE,
			"the identity provider cannot be asked for the token: %.300s", a->err->msg);
	else if (a->status != 200)
		rc = refusal_tell(a, &err);
	else
		rc = answer_take(x, a->body, &holder, cookie, &err);
	signin_done *done = x->done;
	void *of = x->user;
	exchange_retire(x);
	done(of, rc, &holder, cookie, &err);
}

static CGN_RC exchange_start(struct signin_exchange *x, struct cgn_str code, struct cgn_str way,
	struct cgn_err *err)
{
	struct signin *s = x->signin;
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf form = {0};
	char verifier[TEXT_BYTES];
	secret_of(s, way, "verifier", verifier);
	secret_of(s, way, "nonce", x->nonce);
	cgn_buf_putz(&form, "grant_type=authorization_code&code=");
	percent_put(&form, code);
	cgn_buf_char(&form, '&');
	field_put(&form, "redirect_uri", s->redirect_url);
	field_put(&form, "client_id", s->client_id);
	cgn_buf_fmt(&form, "code_verifier=%s", verifier);
	struct weburl url = s->url;
	url.base[0] = '\0';
	url.base_is_version = false;
	const struct webask_endpoint to = {.client = s->client,
		.url = &url,
		.authorization = s->basic.n > 0 ? cgn_buf_z(&s->basic) : NULL};
	const struct webask_question ask = {.path = s->url.base,
		.json = cgn_buf_view(&form),
		.type = "application/x-www-form-urlencoded",
		.max_bytes = MAX_ANSWER,
		.timeout = OIDC_TIMEOUT};
	return webask_start(s->loop, &to, &ask, on_token, x, &x->ask, err);
}

CGN_RC signin_finish(struct signin *s, struct cgn_str query, struct cgn_str way, signin_done *done,
	void *user, struct signin_exchange **out, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf code = {0};
	struct oidc_endpoints at;
	size_t slot = 0;
	CGN_LIVE(s, SIGNIN_TAG);
	CGN_TRY(answer_check(s, query, way, err));
	if (!query_find(query, "code", &code))
		return CGN_FAIL(err, UNAUTHENTICATED, "the identity provider's answer has no code");
	if (!oidc_endpoints(s->oidc, &at))
		return CGN_FAIL(err, UNAVAILABLE, "the identity provider has not been reached yet");
	CGN_TRY(client_open(s, at.token, err));
	while (slot < SIGNIN_EXCHANGES && s->open[slot] != NULL)
		slot++;
	if (slot == SIGNIN_EXCHANGES)
		return CGN_FAIL(err, OVERLOADED, "%d people sign in at this moment: try again",
			SIGNIN_EXCHANGES);
	struct signin_exchange *x = CGN_NEW(struct signin_exchange);
	*x = (struct signin_exchange){.tag = EXCHANGE_TAG,
		.signin = s,
		.slot = slot,
		.done = done,
		.user = user};
	cgn_rc rc = exchange_start(x, cgn_buf_view(&code), way, err);
	if (!cgn_ok(rc)) {
		exchange_release(&x->grave);
		return rc;
	}
	s->open[slot] = x;
	*out = x;
	return CGN_OK;
}

static void exchanges_end(struct signin *s)
{
	struct cgn_err err;
	cgn_rc rc = CGN_FAIL(&err, UNAVAILABLE,
		"the settings of the identity provider change: begin again at /login");
	for (size_t i = 0; i < SIGNIN_EXCHANGES; i++) {
		struct signin_exchange *x = s->open[i];
		if (x == NULL)
			continue;
		exchange_retire(x);
		x->done(x->user, rc, NULL, "", &err);
	}
}

/* ---- life ---- */

/* Make the field Authorization of the client (RFC 6749, 2.3.1). */
static CGN_RC secret_read(struct signin *s, const char *path, struct cgn_err *err)
{
	CGN_ON_EXIT(cgn_buf_fini) struct cgn_buf text = {0}, pair = {0};
	struct cgn_err why;
	if (path == NULL)
		return CGN_OK;
	if (!cgn_ok(disk_read_file(path, SIGNIN_MAX_SECRET, &text, &why)))
		return CGN_FAIL(err, INVALID, "auth.oidc_client_secret_file: %s", why.msg);
	struct cgn_str secret = cgn_buf_view(&text);
	while (secret.n > 0 && (secret.p[secret.n - 1] == '\n' || secret.p[secret.n - 1] == '\r'))
		secret.n--;
	if (secret.n == 0)
		return CGN_FAIL(err, INVALID, "auth.oidc_client_secret_file: %s is empty", path);
	percent_put(&pair, cgn_str_of(s->client_id));
	cgn_buf_char(&pair, ':');
	percent_put(&pair, secret);
	cgn_buf_putz(&s->basic, "Basic ");
	base64_put(&s->basic, cgn_buf_view(&pair));
	crypto_wipe(text.p, text.n);
	if (pair.p != NULL)
		crypto_wipe(pair.p, pair.n);
	return CGN_OK;
}

CGN_RC signin_open(struct cgn_loop *l, struct oidc *oidc, const struct config *cfg, struct signin **out,
	struct cgn_err *err)
{
	struct signin *s = CGN_NEW(struct signin);
	s->tag = SIGNIN_TAG;
	s->loop = l;
	s->oidc = oidc;
	cgn_random(&s->seed, sizeof s->seed);
	s->client_id = cgn_str_dupz(cgn_str_of(cfg->auth.oidc_client_id));
	s->redirect_url = cgn_str_dupz(cgn_str_of(cfg->auth.oidc_redirect_url));
	s->scopes = cgn_str_dupz(cgn_str_of(cfg->auth.oidc_scopes));
	s->ca_file = cgn_str_dup_maybe(cfg->auth.oidc_ca_file);
	s->secure = cgn_str_starts(cgn_str_of(cfg->auth.oidc_redirect_url), "https://");
	s->session_s = cfg->auth.oidc_session / CGN_SEC;
	s->session = CGN_NEW_ARRAY(struct session, SIGNIN_SESSIONS);
	cgn_rc rc = secret_read(s, cfg->auth.oidc_client_secret_file, err);
	if (!cgn_ok(rc)) {
		signin_close(&s);
		return rc;
	}
	*out = s;
	return CGN_OK;
}

void signin_close(struct signin **take)
{
	struct signin *s = CGN_TAKE_LIVE(take, SIGNIN_TAG);
	if (s == NULL)
		return;
	exchanges_end(s);
	if (s->client != NULL)
		http_client_free(&s->client);
	if (s->basic.p != NULL)
		crypto_wipe(s->basic.p, s->basic.n);
	cgn_buf_fini(&s->basic);
	free(s->session);
	free(s->client_id);
	free(s->redirect_url);
	free(s->scopes);
	free(s->ca_file);
	s->tag = 0;
	free(s);
}
