// Checks e-invoices in UBL 2.1: against the schemas, and the rules of EN 16931 as published by CEN/TC 434. Prints one line for each
// problem, also for a warning, and the number of files at the end. With the jars of pom.xml in a folder:
//
//     java -cp 'jars/*' Check.java FILE...

import java.io.File;
import java.io.IOException;
import java.net.URL;
import java.util.stream.Stream;
import javax.xml.XMLConstants;
import javax.xml.transform.Source;
import javax.xml.transform.stream.StreamSource;
import javax.xml.validation.SchemaFactory;
import javax.xml.validation.Validator;
import net.sf.saxon.s9api.Processor;
import net.sf.saxon.s9api.XPathCompiler;
import net.sf.saxon.s9api.XdmDestination;
import net.sf.saxon.s9api.Xslt30Transformer;
import net.sf.saxon.s9api.XsltExecutable;
import org.xml.sax.ErrorHandler;
import org.xml.sax.SAXException;
import org.xml.sax.SAXParseException;

class Check {
    private static final String RULES = "external/schematron/1.3.16/ubl/EN16931-UBL-validation.xslt";
    // What is imported comes before what imports it.
    private static final String[] SCHEMAS = {
        "schemas/xmldsig-core-schema.xsd",
        "schemas/XAdES01903v132-201601.xsd",
        "schemas/XAdES01903v141-201601.xsd",
        "schemas/CCTS_CCT_SchemaModule.xsd",
        "external/schemas/ubl21/maindoc/UBL-Invoice-2.1.xsd",
        "external/schemas/ubl21/maindoc/UBL-CreditNote-2.1.xsd",
    };
    // What a rule found: whether it is fatal, what it demands, and where that is not so.
    private static final String FINDINGS = """
        //*:failed-assert/(@flag || ' ' || normalize-space(*:text) || ' At '
            || replace(@location, "\\*:|\\[namespace-uri\\(\\)='[^']*'\\]", ''))""";

    public static void main(String[] files) throws Exception {
        var schemas = SchemaFactory.newInstance(XMLConstants.W3C_XML_SCHEMA_NS_URI);
        var sources = Stream.of(SCHEMAS).map(Check::source).toArray(Source[]::new);
        Validator validator = schemas.newSchema(sources).newValidator();
        var processor = new Processor(false);
        XsltExecutable rules = processor.newXsltCompiler().compile(source(RULES));
        XPathCompiler xpath = processor.newXPathCompiler();
        for (String file : files) {
            var problems = new Problems(file);
            validator.setErrorHandler(problems);
            try {
                validator.validate(new StreamSource(new File(file)));
            } catch (SAXException e) {
                problems.say("not XML: " + e.getMessage());
                continue;
            }
            var report = new XdmDestination();
            Xslt30Transformer transformer = rules.load30();
            transformer.transform(new StreamSource(new File(file)), report);
            for (var finding : xpath.evaluate(FINDINGS, report.getXdmNode())) {
                problems.say(finding.getStringValue());
            }
            if (xpath.evaluate("//*:fired-rule", report.getXdmNode()).size() == 0) {
                problems.say("no rule applies to it");
            }
        }
        System.out.println(files.length + " checked");
    }

    private static Source source(String name) {
        URL url = Check.class.getClassLoader().getResource(name);
        return new StreamSource(url.toString());
    }

    private record Problems(String file) implements ErrorHandler {
        void say(String problem) {
            System.out.println(new File(file).getName() + ": " + problem);
        }

        @Override
        public void warning(SAXParseException e) {
            error(e);
        }

        @Override
        public void error(SAXParseException e) {
            say("schema, line " + e.getLineNumber() + ": " + e.getMessage());
        }

        @Override
        public void fatalError(SAXParseException e) throws SAXException {
            throw e;
        }
    }
}
