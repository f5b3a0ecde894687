/* SPDX-License-Identifier: Apache-2.0 */
#include "policy/kv/slots/options.h"

#include <string.h>

#include "base/core/err.h"

/* Like llama-server, take '_' for '-' in the names of options. */
static bool is_option(const char *arg, const char *name)
{
	for (; *arg != '\0' && *name != '\0'; arg++, name++)
		if (*arg != *name && !(*arg == '_' && *name == '-'))
			return false;
	return *arg == *name;
}

static bool names_files(const char *arg, bool *scaled)
{
	static const char *const names[] = {"--lora", "--control-vector", "--lora-scaled",
		"--control-vector-scaled"};
	for (size_t i = 0; i < CGN_COUNT(names); i++)
		if (is_option(arg, names[i])) {
			*scaled = i >= 2;
			return true;
		}
	return false;
}

static bool next_file(struct slot_options *o, struct slot_option *out)
{
	struct cgn_str file = cgn_str_split(&o->files, ',');
	const char *colon = o->scaled && file.n > 0 ? memrchr(file.p, ':', file.n) : NULL;
	if (colon != NULL) {
		o->scale = (struct cgn_str){colon, (size_t)(file.p + file.n - colon)};
		file.n -= o->scale.n;
	}
	*out = (struct slot_option){.text = file, .is_file = true};
	return true;
}

bool slot_options_next(struct slot_options *o, struct slot_option *out)
{
	if (o->scale.n > 0) {
		*out = (struct slot_option){.text = o->scale};
		o->scale.n = 0;
		return true;
	}
	if (o->files.n > 0)
		return next_file(o, out);
	if (o->at == o->n)
		return false;
	const char *arg = o->args[o->at++];
	if (names_files(arg, &o->scaled) && o->at < o->n)
		o->files = cgn_str_of(o->args[o->at++]);
	*out = (struct slot_option){.text = cgn_str_of(arg)};
	return true;
}

bool slot_options_in_env(const char *assignment)
{
	return strncmp(assignment, "LLAMA_ARG_", sizeof "LLAMA_ARG_" - 1) == 0;
}
