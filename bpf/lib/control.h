/* SPDX-License-Identifier: MIT OR Apache-2.0 OR GPL-2.0-only */
/* What the firewall is told while it runs. Of the firewall's object only: programs that
 * answer are told in their request (request.h). */
#ifndef WEIR_CONTROL_H
#define WEIR_CONTROL_H

#include "lib/cfg.h"

struct control control;

#endif
