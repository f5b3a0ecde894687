/* SPDX-License-Identifier: Apache-2.0 */
/* settings: a program's configuration, read and checked by the rules of all rooms. Each room has the rules of its own settings, so
 * that policy/config, which all include, includes none of them. Pure: texts in, a struct config out. */
#pragma once
#include "policy/config/config.h"

/* Read as config_read does, then check what the rooms want of their settings. The caller frees |out| with config_free.
 * CGN_INVALID: the message names the file or variable, the key, and what it must be. CGN_NO_MEMORY. */
CGN_RC settings_load(const char *file_name, struct cgn_str toml, const char *const *env,
	const char *const *flags, size_t n_flags, struct config **out, struct cgn_err *err);
