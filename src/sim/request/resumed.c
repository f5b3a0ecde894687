/* SPDX-License-Identifier: Apache-2.0 */
#include "sim/request/resumed.h"

#include "base/mix/mix.h"
#include "sim/request/render.h"

uint64_t sim_answer_seed(uint64_t digest, uint64_t seed, uint32_t choice)
{
	return mix64(digest ^ mix64(seed + choice * 0x51ed2701U));
}

static bool begins_answer(uint64_t digest, uint64_t seed, struct cgn_str resumed)
{
	struct sim_text t;
	uint32_t n = 0;
	sim_text_words(&t, sim_answer_seed(digest, seed, 0));
	return sim_text_skip(&t, resumed, NULL, NULL, &n) && n > 0;
}

/* Return the digest of the chain with a space added. */
static uint64_t digest_spaced(const struct sim_chain *c)
{
	struct sim_chain one = *c;
	one.hashes = NULL; /* A full block would write into the hashes of the other chain. */
	one.n = one.cap = 0;
	sim_chain_text(&one, CGN_STR(" "));
	uint64_t digest = sim_chain_digest(&one);
	sim_chain_fini(&one);
	return digest;
}

static bool is_upper(struct cgn_str s, size_t at)
{
	return at < s.n && s.p[at] >= 'A' && s.p[at] <= 'Z';
}

/* An answer begins with a capital letter, and its first word does not continue a token of the prompt, except
 * for a space in front. */
struct cgn_str sim_resumed_find(struct cgn_str prompt, uint64_t seed, const struct sim_chain *blank)
{
	struct sim_chain c = *blank;
	struct cgn_str rest = prompt, resumed = {NULL, 0};
	c.keep = false;
	while (rest.n > 0 && resumed.n == 0) {
		uint32_t id = 0;
		struct cgn_str here = rest, behind = {rest.p + 1, rest.n - 1};
		if (c.n_tokens > 0 && is_upper(rest, 0) && begins_answer(sim_chain_digest(&c), seed, here))
			resumed = here;
		else if (rest.p[0] == ' ' && is_upper(rest, 1) &&
			begins_answer(digest_spaced(&c), seed, behind))
			resumed = behind;
		(void)sim_token_cut(&rest, &id);
		sim_chain_add(&c, id);
	}
	sim_chain_fini(&c);
	return resumed;
}

bool sim_resumed_add(const struct sim_request_env *env, struct cgn_str resumed, uint64_t seed,
	struct sim_chain *c, uint32_t *n, struct sim_refusal *no)
{
	struct sim_text t;
	*n = 0;
	sim_text_words(&t, sim_answer_seed(sim_chain_digest(c), seed, 0));
	if (resumed.n > 0 && sim_text_skip(&t, resumed, env->reader, c, n) && *n > 0)
		return true;
	return resumed.n == 0 || sim_render_string(env, resumed, false, c, no);
}
