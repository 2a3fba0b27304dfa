/*-------------------------------------------------------------------------
 *
 * sqlstate.h
 *	  What errors say of what has failed.
 *
 *-------------------------------------------------------------------------
 */
#ifndef MIP_SQLSTATE_H
#define MIP_SQLSTATE_H

/* Is it one of this server, or session, at this moment? The same may succeed later. */
static inline bool
mip_may_pass(int sqlstate)
{
	switch (ERRCODE_TO_CATEGORY(sqlstate))
	{
		case ERRCODE_CONNECTION_EXCEPTION:
		case ERRCODE_TRANSACTION_ROLLBACK:
		case ERRCODE_INSUFFICIENT_RESOURCES:
		case ERRCODE_OPERATOR_INTERVENTION:
		case ERRCODE_SYSTEM_ERROR:
			return true;
		default:
			return false;
	}
}

#endif							/* MIP_SQLSTATE_H */
