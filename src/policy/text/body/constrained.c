/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "policy/text/body/body.h"

static bool is_text(struct json_val v, const char *z)
{
	return v.type == JSON_STRING && v.raw.n == strlen(z) + 2 && memcmp(v.raw.p + 1, z, v.raw.n - 2) == 0;
}

/* Return false when absent, null or false. */
static bool is_asked(struct json_val v)
{
	return v.raw.p != NULL && v.type != JSON_NULL && (v.type != JSON_BOOL || json_bool(v, false));
}

bool body_is_constrained(struct json_val body)
{
	static const char *const keys[] = {"guided_json", "guided_regex", "guided_choice", "guided_grammar",
		"structured_outputs", "regex", "ebnf", "grammar", "json_schema", "suffix", "use_beam_search",
		"modalities", "audio", "prompt_embeds"};
	struct json_val v[CGN_COUNT(keys)], format, type, choice;
	json_pick(body, keys, CGN_COUNT(keys), v);
	for (size_t i = 0; i < CGN_COUNT(keys); i++)
		if (is_asked(v[i]))
			return true;
	if (json_get(body, "response_format", &format) && is_asked(format) &&
		!(json_get(format, "type", &type) && is_text(type, "text")))
		return true;
	return json_get(body, "tool_choice", &choice) && is_asked(choice) && !is_text(choice, "auto") &&
		!is_text(choice, "none");
}
