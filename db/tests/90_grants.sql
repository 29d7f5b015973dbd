-- functions/90_grants: the whole matrix of roles and functions, as it should be. A new function is nobody's until it stands here.
select no_plan();

create table test.matrix (name text primary key, roles text);
insert into test.matrix (roles, name)
select roles, name from (values
    -- every caller of todos
    ('app operator worker', '{create_todo,create_todos,list_todos,get_todo,todo_history,queue_counts,pending_doorbell_todos,claim,claim_next,claim_batch,heartbeat,complete,complete_batch,fail,release,retry,read_event,list_webhooks,list_webhook_routes,list_notify_hooks,deferred_queues,admission_status,set_admission_policy,clear_admission_policy}'::text[]),
    -- the gateway alone: it has seen a credential, or verified a signature
    ('app', '{call_board,board_changes,authenticate_operator,open_session_by_token,open_session_by_link,open_session_by_identity,close_session,call_api,authenticate,tools_for,call_tool,webhook_for,receive_delivery,count_deliveries,note_presence,end_presence,take_doorbells,doorbells,return_doorbells}'),
    -- operators alone: identity
    ('operator', '{create_operator_token,list_operator_tokens,revoke_operator_token,create_sign_in_link,close_sessions,list_sessions,add_human_identity,remove_human_identity,list_human_identities,list_sealed,reseal,create_human,vend_endpoint,rotate_credential,revoke_endpoint,set_grant,set_default_lease,set_retention,bind_login,unbind_login,create_webhook,rotate_webhook,create_notify_hook,rotate_notify_hook}'),
    -- agents at a prompt, and operators; over MCP by call_tool: what needs nothing sealed
    ('operator worker', '{delete_webhook,add_webhook_route,remove_webhook_route,delete_notify_hook}'),
    ('operator readonly', '{list_humans,find_endpoint,list_endpoints,unsound_todos}'),
    -- the board, by the gateway for a named human, and operators at a prompt
    ('app operator', '{create_todo_any_endpoint,get_todo_any_endpoint,todo_history_any_endpoint,list_todos_any_endpoint,claim_any_endpoint,heartbeat_any_endpoint,complete_any_endpoint,fail_any_endpoint,release_any_endpoint,retry_any_endpoint}'),
    ('app operator', '{webhook_endpoint,hold_webhook,release_quarantined,discard_quarantined,list_events_any_endpoint,get_event_any_endpoint,read_event_any_endpoint,replay_event,webhook_audit_of,take_deliveries,settle_delivery,list_admission,get_admission,put_admission,delete_admission}'),
    ('app operator', '{metrics}'),
    ('app operator', '{queue_overview,stalled_queues,find_todos_any_endpoint}'),
    ('operator readonly', '{doctor_facts}'),
    -- time
    ('app operator cron', '{tick}'),
    ('operator cron', '{reap_expired,requeue_due_retries,reopen_admission,sweep_stalled,prune}'),
    ('app operator readonly cron', '{sweep_age}'),
    ('app operator readonly', '{api_operations,api_shapes,metric_collectors,sweep_status,tools,source_types,delivery_counts,notify_counts}'),
    ('app operator worker readonly', '{error_table,admission_window}'),
    ('app operator worker readonly cron', '{now}')) v(roles, names), unnest(names) name;

create view test.cells as
    select p.oid as proc, p.proname as name, r as role, has_function_privilege('switchboard_' || r, p.oid, 'execute') as may, r = any (string_to_array(coalesce(m.roles, ''), ' ')) as should
    from pg_proc p left join test.matrix m on m.name = p.proname, unnest('{app,operator,worker,readonly,cron}'::text[]) r where p.pronamespace = 'switchboard'::regnamespace;

select is_empty($$ select m.name from test.matrix m where to_regproc('switchboard.' || m.name) is null $$, 'every function of the matrix exists');
select is_empty($$ select role, name from test.cells where may and not should $$, 'no role may execute more than the matrix says');
select is_empty($$ select role, name from test.cells where should and not may $$, 'nor less');
select is_empty($$ select c.name, a.grantee::regrole from test.cells c, pg_proc p, aclexplode(p.proacl) a where p.oid = c.proc and a.grantee <> p.proowner and a.grantee::regrole::text !~ '^switchboard_(app|operator|worker|readonly|cron)$' $$,
    'no grant to anybody else');
select is_empty($$ select name from test.cells c join pg_proc p on p.oid = c.proc where c.may and not p.prosecdef and p.provolatile <> 'i' $$, 'what a role may execute runs as the owner, unless it is immutable');
create function test.failure_as(p_role text, p_function text) returns text language plpgsql as $$
begin
    perform set_config('role', 'switchboard_' || p_role, true);
    execute format('select switchboard.%I()', p_function);
    perform set_config('role', 'none', true);
    return null;
exception when others then
    return sqlerrm;
end $$;
select is_empty($$ select c.role, c.name, f from test.cells c join pg_proc p on p.oid = c.proc, test.failure_as(c.role, c.name) f where c.may and p.provolatile = 'i' and p.pronargs = 0 and f is not null $$,
    'and that needs no other rights than its own: the registers are read by the server''s login');
select is_empty($$ select p.oid::regprocedure from pg_proc p where p.pronamespace = 'switchboard'::regnamespace and p.prosecdef and not exists (select from test.cells c where c.proc = p.oid and c.may) and p.proname <> 'scope' $$,
    'SECURITY DEFINER is for what somebody may execute, and the gate');

-- by the roles themselves: no table, no schema to put things into
select test.login(r, 'switchboard_' || r) from unnest('{app,operator,worker,readonly,cron}'::text[]) r \g /dev/null
select is(test.as_login(test.login_name(r), 'select count(*) from switchboard.' || t) ->> 'error', '42501', r || ' may not read ' || t)
    from unnest('{app,operator,worker,cron}'::text[]) r, unnest('{operator_tokens,human_sessions,sign_in_links,human_identities,gateways,endpoint_presence,endpoint_seen,todos,endpoints,credentials,events,endpoint_webhooks,webhook_routes,webhook_audit,delivery_totals,notify_hooks,notify_deliveries,notify_totals,queue_stall_nudges,admission_policies,admission_windows,admission_policy_audit,admission_owed,admission_refusals,admission_totals,endpoint_logins,settings}'::text[]) t;
select is(test.as_login(test.login_name('readonly'), 'select count(*) from switchboard.' || t) ->> 'error', '42501', 'readonly may not read ' || t) from unnest('{operator_tokens,human_sessions,sign_in_links,human_identities,credentials,events,endpoint_webhooks,notify_hooks}'::text[]) t;
select is(has_schema_privilege('switchboard_' || r, 'switchboard', 'create'), false, r || ' may not create in the schema') from unnest('{app,operator,worker,readonly,cron}'::text[]) r;
select is(has_schema_privilege('public', 'switchboard', 'usage'), false, 'PUBLIC may not even look into it');
-- a caller's temporary tables, functions and search_path do not get in between
select test.set_up() \g /dev/null
create temporary table todos (id text, state text);
create temporary table endpoints (id text);
create function pg_temp.scope(text, text) returns uuid language sql as 'select null::uuid';
set search_path = pg_temp, test, tap, public;
select is((switchboard.claim(test.a(), test.create(), 'w')).state, 'claimed', 'a session''s own todos, endpoints and scope() are not looked at');

select * from finish();
