/* SPDX-License-Identifier: Apache-2.0 */
/* call: how a replacement of a call is written. */
#pragma once

/* A replacement, declared first as the warnings ask. */
#define CALL(type, name, ...)                   \
	extern type __real_##name(__VA_ARGS__); \
	extern type __wrap_##name(__VA_ARGS__); \
	type __wrap_##name(__VA_ARGS__)
#define SIMULATED_OR(real)   \
	if (!is_simulated()) \
	return real
