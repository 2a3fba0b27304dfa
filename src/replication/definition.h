/*-------------------------------------------------------------------------
 *
 * definition.h
 *	  Changes of definitions, which all replicas make at the same position.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_REPLICATION_DEFINITION_H
#define MIP_REPLICATION_DEFINITION_H

#include "replication/message.h"

/*
 * A command, of one statement or several, as the current user and his settings have it: the
 * body of a message. It is executed, and undone again, to see that it can be: so this takes
 * the locks that it takes, and errors out as it does; with 0A000 where it may not be the
 * same at all replicas.
 */
extern bytea *mip_definition_make(const char *command);

/*
 * Executes what such a message says. Errors out if this replica lacks what it needs; sessions
 * whose temporary objects are in its way have been ended then.
 */
extern void mip_definition_execute(const MipMessage *message);

#endif							/* MIP_REPLICATION_DEFINITION_H */
