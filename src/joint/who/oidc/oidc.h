/* SPDX-License-Identifier: Apache-2.0 */
/* oidc: the identity provider of auth.oidc_issuer, and whom its tokens name. The provider is asked for its address of
 * keys (OpenID Connect Discovery 1.0, 4) and for its keys, at the start, every OIDC_REFRESH, and when a token is signed
 * with a key that is not known. A round of questions begins at most once in OIDC_ASK_EVERY for all such tokens, and one
 * is under way at a time: however many tokens name keys that do not exist, one that names a new key is judged within
 * OIDC_ASK_EVERY and the provider's time. While it cannot be reached, the keys that are known
 * are used for auth.oidc_keys_max_age. Redirects are not followed.
 *
 * A token that was judged is remembered until it ends or the keys or the rules change, because a signature takes
 * some 30 to 180 us to check: OIDC_CACHE tokens, 4 MiB; the keys take 100 KiB; an answer of the provider
 * at most OIDC_MAX_ANSWER. */
#pragma once
#include "io/os/loop/loop.h"
#include "joint/report/telemetry/telemetry.h"
#include "policy/config/config.h"
#include "policy/who/claims/claims.h"

#define OIDC_CACHE      2048
#define OIDC_REFRESH    (300 * CGN_SEC)
#define OIDC_ASK_EVERY  CGN_SEC
#define OIDC_TIMEOUT    (10 * CGN_SEC)
#define OIDC_MAX_ANSWER ((size_t)256 << 10)
#define OIDC_URL_MAX    1024

struct oidc;
/* Begin to ask the provider. |cfg|, in which auth.oidc_issuer is set, is read again from oidc_reload on. CGN_INVALID: the
 * settings are wrong. The loop's thread. */
CGN_RC oidc_open(struct cgn_loop *l, struct telemetry *t, const struct config *cfg, struct oidc **out,
	struct cgn_err *err);
/* Use the settings of |cfg|. On failure the old ones stay. Another provider's keys are not known at first. The loop's
 * thread. */
CGN_RC oidc_reload(struct oidc *o, const struct config *cfg, struct cgn_err *err);
void oidc_close(struct oidc **take); /* The loop's thread; no other thread uses it any more. */
/* Do the rules and files of |cfg|, in which auth.oidc_issuer is set, allow oidc_open? Opens no connection. */
CGN_RC oidc_check(const struct config *cfg, struct cgn_err *err);

/* A token whose key is not known, between the times when it is judged. All zero at first. */
struct oidc_wait {
	uint64_t until; /* Number of the round that began after the token came. */
	uint64_t seen;  /* Rounds that had ended when the token was last judged. */
};
/* Has no round ended since |w| was judged, so that it need not be judged again? Any thread. */
bool oidc_wait_goes_on(struct oidc *o, const struct oidc_wait *w);
/* Find out who holds |token|. |audience|: as claims_judge. |wait| NULL: the caller does not ask again, so only a key that
 * the provider may have by now makes it CGN_NOT_FOUND. Any thread.
 * CGN_UNAUTHENTICATED: the token is wrong; CGN_FORBIDDEN: it gives nothing here; CGN_NOT_FOUND: the provider is being
 * asked for the token's key, so that it is worth to try again soon; CGN_UNAVAILABLE: the provider's keys are not known, or
 * too old. */
CGN_RC oidc_judge(struct oidc *o, struct cgn_str token, struct cgn_str audience, struct oidc_wait *wait,
	struct claims_holder *out, struct cgn_err *err);

/* Copy auth.oidc_issuer, whose tokens are taken now. Any thread. */
void oidc_issuer(struct oidc *o, char out[CLAIMS_ISSUER_MAX + 1]);

/* Where people sign in, as the provider says; false: it has not been reached yet. The loop's thread. */
struct oidc_endpoints {
	char authorize[OIDC_URL_MAX], token[OIDC_URL_MAX];
};
bool oidc_endpoints(const struct oidc *o, struct oidc_endpoints *out);
