-- functions/76_api_shapes: the shapes of answers; py/tests/test_openapi.py compares them with what a server answers, 70_api.sql with the register.
select no_plan();
select is_empty($$ select name from switchboard.api_shapes() group by 1 having count(*) > 1 $$, 'a name is one shape');
select is_empty($$ select name from switchboard.api_shapes() where name !~ '^[A-Z][A-Za-z]+$' or description !~ '[.]$' $$, 'every shape has a name and says what it is');
select is_empty($$ select s.name, f.k from switchboard.api_shapes() s, jsonb_object_keys(s.shape) f (k) where f.k !~ '^[a-z][a-z0-9_]*[?]?$' $$, 'fields have plain names');
select is_empty($$ select s.name, f.k from switchboard.api_shapes() s, jsonb_object_keys(s.shape) f (k) where f.k ~ 'secret|digest|credential$|sealed' $$, 'no shape has a secret: those stand beside it, in the one answer that makes them');
select * from finish();
